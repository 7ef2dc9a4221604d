#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Proves that `pglog_bench handoff` measures every queue, alone and in the whole of osdcore, prints the
# JSON that it promises, for one number of clients and for several, keeps a set pace, removes its
# databases, fails when an operation fails, draws its plots, and refuses wrong options by name.
#
# usage: handoff_test.sh PGLOG_BENCH
set -u
. "$(dirname "$0")/expect.sh"
bench=$1

# handoff CODE TEXT ARGS...: expect, of this subcommand.
handoff() {
  code=$1 text=$2
  shift 2
  expect "$code" "$text" "$bench" handoff "$@"
}

# holds FILTER: jq finds it true of the last output.
holds() {
  jq -e "$1" "$tmp/out" >/dev/null || fail "not true: $1"
}

all=single,sharded,fast,inline,futex
handoff 0 '"queues":' --queue=$all --ops=2000 --rounds=2 --gap=20 --json
holds '.clients == 1 and .pinned and .gap_us == 20 and (.queues | keys | length) == 5'
holds '[.queues[] | .p50_us > 0 and .min_us <= .p50_us and .p50_us <= .p99_us and .p99_us <= .p999_us] | all'
holds '[.queues[] | .min_us <= .avg_us and .cpu_us_per_op > 0 and .submit_us > 0] | all'
holds '[.queues[] | .wakes_per_op >= 0 and .wakes_per_op <= 1] | all'
holds '.queues.inline.wakes_per_op < 0.5 and .queues.futex.wakes_per_op > 0.5'
# An operation each 20 us is 50,000 a second at the most.
holds '[.queues[] | .ops_per_s <= 50500] | all'

handoff 0 '"queues":' --queue=single,sharded,fast --clients=1,3 --shards=2 --threads=2 --ops=2000 \
  --rounds=1 --gap=0 --json
holds 'length == 2 and .[0].clients == 1 and .[1].clients == 3 and (.[1].pinned | not)'
handoff 0 'fast' --clients=2 --load=0.5 --ops=2000 --rounds=1
grep -q futex "$tmp/out" && fail "futex has one client only"

# All of osdcore, at half of its capacity.
handoff 0 '"queues":' --pipeline --queue=single,sharded,fast,inline --ops=1000 --rounds=2 \
  --db="$tmp/db" --json
[ -e "$tmp/db" ] && fail "the databases were not removed"
holds '.pipeline and .store == "split" and .shards == 4 and (.pinned | not)'
holds '.queues | keys == ["fast", "inline", "sharded", "single"]'
holds '.capacity_ops_per_s * .gap_us / 1e6 | . > 1.99 and . < 2.01'
holds '.gap_us as $gap | [.queues[] | .ops_per_s > 0 and .ops_per_s <= 1.001e6 / $gap] | all'
holds '[.queues[] | .min_us <= .p50_us and .p50_us <= .p99_us and .p99_us <= .p999_us] | all'
holds '[.queues[] | .p50_us <= .e2e_p50_us and .p99_us <= .e2e_p99_us and .e2e_p50_us > 0] | all'
holds '[.queues[] | .wakes_per_op >= 0 and .committer_cpu > 0 and .client_cpu > 0] | all'
holds '.queues.fast.worker_cpu > 0 and .queues.fast.rocksdb_cpu >= 0'
# In a folder that is there already, as fast as two clients can.
mkdir "$tmp/mine"
handoff 0 'store rocksdb: 2 clients' --pipeline --store=rocksdb --queue=sharded,fast --clients=2 --gap=0 \
  --ops=1000 --rounds=1 --db="$tmp/mine"
grep -q 'answer p99' "$tmp/out" && grep -q committer "$tmp/out" || fail "columns of the table"
rmdir "$tmp/mine" || fail "the folder is not as it was"
handoff 1 '--db=/dev/null/x: ' --pipeline --ops=1000 --db=/dev/null/x
# As on a full disk: the first request that is not done ends the run.
(
  failures=0
  ulimit -f 2000
  handoff 1 'sharded: write_full of rbd_data.1.' --pipeline --store=rocksdb --queue=sharded --gap=0 \
    --ops=2000 --rounds=1 --db="$tmp/full"
  exit "$failures"
) || fail "a full disk"
[ -e "$tmp/full" ] && fail "the database of a failed run was not removed"

# plots FILE NAME...: it is an SVG, from beginning to end, that has these texts.
plots() {
  file=$1
  shift
  grep -q '<svg' "$file" && [ "$(grep . "$file" | tail -n 1)" = "</svg>" ] || fail "$file is no SVG"
  for name in "$@"; do
    grep -q -F -e "$name" "$file" || fail "$file does not show \"$name\""
  done
}

handoff 0 '"max_ops_per_s":' --clients=1,2 --queue=single,sharded,fast,futex --ops=1000 --rounds=1 --json \
  --svg="$tmp/alone.svg"
holds '[.[].queues[].max_ops_per_s > 0] | all'
plots "$tmp/alone.svg" single sharded fast futex '1 client' '2 clients' 'a worker' '99.9 %'
[ -s "$tmp/err" ] && fail "gnuplot complains: $(cat "$tmp/err")"
handoff 0 'max ops/s' --pipeline --queue=sharded,inline --ops=1000 --rounds=1 --svg="$tmp/all of it.svg"
plots "$tmp/all of it.svg" sharded inline committer RocksDB
grep -q single "$tmp/all of it.svg" && fail "a queue that was not run"
[ -s "$tmp/err" ] && fail "gnuplot complains: $(cat "$tmp/err")"
(PATH=$tmp && exec "$bench" handoff --svg="$tmp/none.svg") >"$tmp/out" 2>"$tmp/err"
[ $? -eq 1 ] && grep -q 'gnuplot-nox' "$tmp/err" || fail "a missing gnuplot is not named"
handoff 1 '/none/file.svg.gnuplot: No such file or directory' --svg="$tmp/none/file.svg"

handoff 2 '--queue must be some of' --queue=fast,slow
handoff 2 '--clients must be a number from 1 to 1000, not "0"' --clients=3,0
handoff 2 '--gap must be a number from 0 to 1e+06, not "x"' --gap=x
handoff 2 '--load must be a number from 0.01 to 10, not "0"' --load=0
handoff 2 '--ops must be a number from 1000' --ops=999
handoff 2 '--threads must be a number from 1 to 64, not "65"' --threads=65
handoff 2 '--queue must be some of single, sharded, fast, inline with --pipeline, not "futex"' \
  --pipeline --queue=futex
handoff 2 '--store must be split or rocksdb, not "both"' --pipeline --store=both
handoff 2 '--db must be a path of 1 to 3000 bytes' --pipeline --db=
handoff 2 '--svg must be a path of 1 to 3000 bytes' --svg=
handoff 2 '--queue=futex has one client only' --queue=futex --clients=1,3
handoff 2 '--db needs --pipeline' --db="$tmp/db"
handoff 2 '--store needs --pipeline' --store=split
handoff 2 'only one of them may be given' --gap=5 --load=0.5
handoff 2 'unexpected argument "more"' more
handoff 2 '' --nothing
handoff 0 'usage: pglog_bench handoff' --help

[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
