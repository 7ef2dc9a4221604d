#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Proves that `pglog_bench load` opens what it has written, in both stores and with several numbers of
# threads, that its JSON has every field, and that wrong input is refused by name.
#
# usage: load_test.sh PGLOG_BENCH
set -u
. "$(dirname "$0")/expect.sh"
bench=$1

# load CODE TEXT ARGS...: expect, of this subcommand.
load() {
  code=$1 text=$2
  shift 2
  expect "$code" "$text" "$bench" load "$@"
}

for store in split rocksdb; do
  load 0 '"loads":' --db="$tmp/$store" --store=$store --pg-bits=4 --entries=100 --threads=1,2,5 \
    --rounds=2 --json
  jq -e --arg store $store '.store == $store and .pgs == 16 and .entries == 1600 and
    ([.loads[].threads] == [1, 2, 5]) and
    ([.loads[] | .open_ms >= .load_ms and .load_ms > 0 and .cpu_ms > 0 and .entries_per_s > 0] | all)' \
    "$tmp/out" >/dev/null || fail "JSON of $store: $(cat "$tmp/out")"
done
load 0 'threads' --db="$tmp/table" --pg-bits=0 --entries=1 --rounds=1

load 1 "$tmp/split: there is something already" --db="$tmp/split"
load 1 'No such file' --db="$tmp/no/such"
load 2 'load needs --db=DIR'
load 2 '--pg-bits must be a number from 0 to 16, not "17"' --db=x --pg-bits=17
load 2 '--entries must be a number from 1 to 1000000, not "0"' --db=x --entries=0
load 2 '--threads must be a number from 1 to 64, not "65"' --db=x --threads=1,65
load 2 '--store must be split or rocksdb, not "both"' --db=x --store=both
load 2 'unexpected argument "more"' more
load 0 'usage: pglog_bench load' --help

[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
