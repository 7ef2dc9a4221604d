#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Proves that stock db_bench and ldb (Debian's rocksdb-tools) work over the plugin with nothing but
# LD_PRELOAD and an option. Usage: preload_test.sh LIBPGLOG
set -u
lib=$(readlink -f "$1")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
bad=0

fail() {
  echo "FAILED: $1"
  echo "$out" | tail -5
  bad=1
}

# expect WHAT STATUS TEXT COMMAND...: the exit status is STATUS and the output contains TEXT.
expect() {
  local what=$1 status=$2 text=$3
  shift 3
  out=$(LD_PRELOAD=$lib "$@" 2>&1)
  local rc=$?
  [ $rc = "$status" ] || fail "$what: exit status $rc, not $status"
  grep -qF -- "$text" <<<"$out" || fail "$what: no \"$text\" in its output"
}

bench() {
  # db_bench turns enable_pipelined_write on by itself, which the plugin refuses.
  db_bench --db="$dir/bench" --fs_uri=pglog:// --enable_pipelined_write=false \
    --write_buffer_size=1048576 --num=20000 --compression_type=none "$@"
}
export -f bench
export dir

expect "db_bench, new database" 0 "ops/sec" bash -c 'bench --benchmarks=fillrandom'
[ -f "$dir/bench/pglog.arena" ] || fail "db_bench: no arena, the plugin was not in use"
expect "db_bench, same directory" 0 "overwrite" \
  bash -c 'bench --use_existing_db=1 --benchmarks=overwrite,readrandom'
expect "db_bench, refused option" 1 "enable_pipelined_write=true is refused" \
  db_bench --db="$dir/refused" --fs_uri=pglog:// --benchmarks=fillseq --num=1

l() { echo ldb --db="$dir/ldb" --fs_uri="$1"; }
expect "ldb put" 0 "OK" $(l pglog://) --create_if_missing put a 1
[ -f "$dir/ldb/pglog.arena" ] || fail "ldb: no arena, the plugin was not in use"
expect "ldb put, options in the URI" 0 "OK" $(l "pglog://?memory=2M&prefix=pglog/") put b 2
expect "ldb put, id form" 0 "OK" $(l "id=pglog;memory=2M") put c 3
expect "ldb get" 0 "2" $(l pglog://) get b
expect "ldb scan" 0 "c : 3" $(l pglog://) scan
expect "ldb, unknown option" 1 "unknown option 'nonsense'" $(l "pglog://?nonsense=1") get a
expect "ldb, another rule" 1 "rule" $(l "pglog://?prefix=other/") put d 4
expect "ldb, still fine" 0 "a : 1" $(l pglog://) scan

[ $bad = 0 ] && echo "PASSED"
exit $bad
