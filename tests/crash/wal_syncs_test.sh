#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Proves, by strace, that the plugin costs no syncs of WAL files but those it accounts for. In the
# clock of pglog_bench, between its two looks at /proc/self (the modes take no turns), the kernel sees
#   mode split:  groups + WAL switches + syncing check points
#   mode none:   groups + WAL switches - clean switches
# A syncing check point is one that found bytes not yet durable in the newest WAL; the one of a final
# flush finds that WAL empty. A clean switch is one right after a synced group: RocksDB does not sync
# a file again to which nothing was appended. strace counts those; the bench prints all else.
#
# usage: wal_syncs_test.sh PGLOG_BENCH DATA_DIR [PASSES]
set -u
bench=$1
data=$2
passes=${3:-3}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

strace -f -y -e trace=fdatasync,fsync,openat,write -o "$tmp/strace" "$bench" replay \
  --trace="$data/osd_small.trace.zst" --before="$data/osd_small.before.zst" --modes=none,split \
  --group=32 --passes="$passes" --turn=0 --json --db="$tmp/db" >"$tmp/json" || exit 1

# figure MODE NAME: of the JSON object.
figure() {
  tr -d '\n' <"$tmp/json" | sed "s/.*\"modes\".*\"$1\":{//; s/\"rounds\".*//" |
    grep -o "\"$2\": *[0-9]*" | grep -o '[0-9]*$'
}

# Syncs of WALs, and clean switches, in the clock of a mode.
count() {
  awk -v dir="/db/$1/" '
    /openat.*"\/proc\/self\/clear_refs"/ { clock = 1 }
    /openat.*"\/proc\/self\/status"/ { clock = 0 }
    index($0, dir) == 0 || !/\.log[>"]/ || /resumed>/ { next }
    { match($0, /[0-9]+\.log/); wal = substr($0, RSTART, RLENGTH) }
    /openat/ && /O_CREAT/ && /O_TRUNC/ {
      if (clock && newest != "" && !dirty[newest])
        clean++
      newest = wal
    }
    / write\(/ { dirty[wal] = 1 }
    / (fdatasync|fsync)\(/ {
      dirty[wal] = 0
      if (clock)
        syncs++
    }
    END { print syncs + 0, clean + 0 }' "$tmp/strace"
}

bad=0
# expect MODE SYNCS EXPECTED HOW
expect() {
  echo "$1: $2 syncs of WALs, $4 = $3"
  [ "$2" = "$3" ] || { echo "FAILED"; bad=1; }
  [ "$2" -gt 100 ] || { echo "FAILED: hardly any"; bad=1; }
}
for mode in none split; do
  read -r syncs clean < <(count $mode)
  groups=$(figure $mode groups)
  switches=$(figure $mode wal_switches)
  checkpoints=$(figure $mode checkpoints)
  syncing=$(figure $mode checkpoint_syncs)
  echo "$mode: $groups groups, $switches WAL switches, $checkpoints check points, $syncing syncing"
  if [ $mode = none ]; then
    expect none "$syncs" $((groups + switches - clean)) \
      "groups + WAL switches - $clean clean switches"
  else
    expect split "$syncs" $((groups + switches + syncing)) \
      "groups + WAL switches + syncing check points"
  fi
  [ "$switches" -ge 3 ] || { echo "FAILED: too few WAL switches"; bad=1; }
done
[ $bad = 0 ] && echo PASSED
exit $bad
