#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Proves that no pg log key is in any SST or memtable: a replay of real OSD transactions, flushed
# and closed, and databases of either rule that were killed are copied, opened by plain RocksDB,
# which drops their guard, and read in full.
#
# usage: no_pglog_in_rocksdb_test.sh PGLOG_BENCH CRASH_TOOL DATA_DIR
set -u
bench=$1
tool=$2
data=$3
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
bad=0
replay() {
  "$bench" replay --trace="$data/osd_small.trace.zst" --before="$data/osd_small.before.zst" \
    --keep --limit=8000 --db="$tmp/db" "$@" >"$tmp/out" 2>&1
}

two_wals() {
  "$tool" two-wals "$tmp/$1" "$1" &
  wait $! 2>/dev/null
  [ $? = 137 ] || { echo "FAILED: making the database: not killed"; bad=1; }
}

# look WHAT DIR RULE STATUS
look() {
  cp -r "$2" "$tmp/copy"
  out=$("$tool" plain "$tmp/copy" "$3" 2>&1)
  rc=$?
  echo "$1: $out"
  [ $rc = "$4" ] || { echo "FAILED: exit status $rc, not $4"; bad=1; }
  [ "$4" = 1 ] || grep -q '^[1-9][0-9]* keys.* 0 of them' <<<"$out" || bad=1
  rm -rf "$tmp/copy"
}

replay --modes=split,rocksdb || { cat "$tmp/out"; exit 1; }
look "split" "$tmp/db/split" ceph 0
# The check sees what it is to see.
look "rocksdb, which does hold them" "$tmp/db/rocksdb" ceph 1
# Killed: all is in WALs.
two_wals default
look "default rule, killed" "$tmp/default" default 0
two_wals ceph
look "Ceph's rule, killed" "$tmp/ceph" ceph 0
[ $bad = 0 ] && echo PASSED
exit $bad
