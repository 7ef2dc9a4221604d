#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Proves that `pglog_bench load` opens what it has written, in both stores and with several numbers of
# threads, that its JSON has every field, and that wrong input is refused by name.
#
# usage: load_test.sh PGLOG_BENCH
set -u
bench=$1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# expect CODE TEXT ARGS...: it ends with that code, and its output has that text.
expect() {
  code=$1 text=$2
  shift 2
  "$bench" load "$@" >"$tmp/out" 2>"$tmp/err"
  got=$?
  [ "$got" -eq "$code" ] || fail "exit code $got, not $code: $*"
  cat "$tmp/out" "$tmp/err" | grep -q -F -e "$text" || fail "no \"$text\" from: $*"
}

for store in split rocksdb; do
  expect 0 '"loads":' --db="$tmp/$store" --store=$store --pg-bits=4 --entries=100 --threads=1,2,5 \
    --rounds=2 --json
  jq -e --arg store $store '.store == $store and .pgs == 16 and .entries == 1600 and
    ([.loads[].threads] == [1, 2, 5]) and
    ([.loads[] | .open_ms >= .load_ms and .load_ms > 0 and .cpu_ms > 0 and .entries_per_s > 0] | all)' \
    "$tmp/out" >/dev/null || fail "JSON of $store: $(cat "$tmp/out")"
done
expect 0 'threads' --db="$tmp/table" --pg-bits=0 --entries=1 --rounds=1

expect 1 "$tmp/split: there is something already" --db="$tmp/split"
expect 1 'No such file' --db="$tmp/no/such"
expect 2 'load needs --db=DIR'
expect 2 '--pg-bits must be a number from 0 to 16, not "17"' --db=x --pg-bits=17
expect 2 '--entries must be a number from 1 to 1000000, not "0"' --db=x --entries=0
expect 2 '--threads must be a number from 1 to 64, not "65"' --db=x --threads=1,65
expect 2 '--store must be split or rocksdb, not "both"' --db=x --store=both
expect 2 'unexpected argument "more"' more
expect 0 'usage: pglog_bench load' --help

[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
