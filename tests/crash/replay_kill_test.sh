#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Proves that a replay of real OSD transactions, killed at any moment, leaves a database that holds
# exactly a prefix of them, data and pg log.
#
# usage: replay_kill_test.sh PGLOG_BENCH CRASH_TRACE DATA_DIR [ROUNDS [SEED]]
# ROUNDS: the argument, or PGLOG_CRASH_ROUNDS, or 5.
set -u
bench=$1
check=$2
data=$3
rounds=${4:-${PGLOG_CRASH_ROUNDS:-5}}
RANDOM=${5:-$(date +%N | sed 's/^0*//')}
trace=$data/osd_small.trace.zst
before=$data/osd_small.before.zst
tmp=$(mktemp -d) || exit 1
set -m # a process group for each job, so that a kill reaches the process that writes

for ((i = 1; i <= rounds; i++)); do
  ms=$((RANDOM % 2500 + 300))
  group=$((RANDOM % 64 + 1))
  "$bench" replay --trace="$trace" --before="$before" --modes=split --keep --group=$group \
    --db="$tmp/db" >"$tmp/out" 2>&1 &
  pid=$!
  sleep "$(printf '%d.%03d' $((ms / 1000)) $((ms % 1000)))"
  kill -9 -- -$pid 2>/dev/null # no such group: it was done before
  wait $pid 2>/dev/null
  status=$?
  while kill -0 -- -$pid 2>/dev/null; do # until all of it is gone, and its lock with it
    sleep 0.01
  done
  if [ $status != 0 ] && [ $status != 137 ]; then
    echo "FAILED: pglog_bench ended with $status"
    cat "$tmp/out"
    exit 1
  fi
  [ -d "$tmp/db/split" ] || continue # killed before there was one
  if ! n=$("$check" "$tmp/db/split" "$trace" "$before"); then
    echo "FAILED: $n (killed after $ms ms, groups of $group; the database is $tmp/db/split)"
    exit 1
  fi
  echo "killed after $ms ms: $n transactions"
  rm -rf "$tmp/db"
done
rm -rf "$tmp"
echo "$rounds rounds, all consistent"
