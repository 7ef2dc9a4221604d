#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Proves that `pglog_bench replay` over the bundled trace ends with the real OSD's key space in
# every mode that holds one, also in a later pass and over a reopening, that its JSON has every
# field, that wrong input ends with the right exit code and a message that names it, and that a
# wrong key space is noticed.
#
# usage: bench_test.sh PGLOG_BENCH DATA_DIR [MODES]
set -u
. "$(dirname "$0")/expect.sh"
bench=$1
data=$2
modes=${3:-none,rocksdb,rocksdb+walzstd,split}
late=${modes##*,} # the last mode, for what need not run in all
checked=$(echo "$modes" | tr ',' '\n' | grep -c -e rocksdb -e split)

small="--trace=$data/osd_small.trace.zst --before=$data/osd_small.before.zst"

# The whole trace; then a part of it in plain form, in recorded groups, with a reopening
# and a kill.
expect 0 '"after":{"keys":72535' "$bench" replay $small --modes="$modes" --db="$tmp/db" --keep \
  --group=256 --expect="$data/osd_small.after.json"
[ "$(grep -c 'equal before and after reopening' "$tmp/out")" -eq "$checked" ] || fail "checks"
[ -e "$tmp/db/rocksdb/CURRENT" ] || fail "--keep kept nothing"
zstd -q -d "$data/osd_small.trace.zst" -o "$tmp/plain" || fail "zstd"
expect 0 '"sha256":' "$bench" replay --trace="$tmp/plain" \
  --before="$data/osd_small.before.zst" --group=trace --limit=2000 --reopen-at=1234 \
  --modes="$late" --check --recover --json --db="$tmp/db"
[ -e "$tmp/db/$late" ] && fail "the databases were not removed"
for field in trace group passes pglog_logical_bytes_per_txn modes txns_per_s cpu_us_per_txn \
  commit_us p50 p99 p999 bytes_per_txn wal flush compaction arena total pglog_space_bytes live \
  file peak_rss_bytes reopen_ms p_flushes rounds; do
  grep -q "\"$field\":" "$tmp/out" || fail "the JSON object has no $field"
done

# Later passes.
expect 0 'equal before and after reopening' "$bench" replay $small --limit=2000 --passes=3 \
  --group=64 --rounds=2 --modes="$modes" --check --db="$tmp/db"

# A run that is killed, in its turn or in another's, ends the round with its name and no signal for us.
"$bench" replay $small --passes=1000 --turn=20 --modes=none,"$late" --db="$tmp/db" >"$tmp/out" 2>"$tmp/err" &
pid=$!
while [ "$(wc -w <"/proc/$pid/task/$pid/children")" -lt 2 ]; do sleep 0.1; done
read -r first second <"/proc/$pid/task/$pid/children"
sleep 1
kill -STOP "$second"
kill -9 "$first"
sleep 0.5
kill -9 "$second"
wait "$pid"
got=$?
[ "$got" -eq 1 ] || fail "exit code $got, not 1, after a run was killed"
grep -q 'mode none, round 1: its process ended by signal 9' "$tmp/err" || fail "which run was killed"

# Wrong use.
expect 2 'unknown command "replai"' "$bench" replai
expect 2 '--trace=FILE is missing' "$bench" replay
expect 2 'unknown mode "rocks"' "$bench" replay $small --modes=none,rocks
expect 2 '--group must be a number from 1 to 1000000, not "0"' "$bench" replay $small --group=0
expect 2 '--rounds must be a number from 1 to 1000, not "3x"' "$bench" replay $small --rounds=3x
expect 2 'unrecognized option' "$bench" replay $small --frobnicate
expect 2 'unexpected argument "more"' "$bench" replay $small more
expect 1 'is beyond the 24000 records' "$bench" replay $small --reopen-at=24000

# Wrong data.
expect 1 "$tmp/nothing: No such file" "$bench" replay --trace="$tmp/nothing"
head -c 100000 "$tmp/plain" >"$tmp/cut"
expect 1 'malformed record' "$bench" replay --trace="$tmp/cut" --modes=none
head -c 100000 "$data/osd_small.trace.zst" >"$tmp/cut.zst"
expect 1 'cut off at compressed byte 100000' "$bench" replay --trace="$tmp/cut.zst" --modes=none
{ head -c 16 "$tmp/plain"; printf '\375'; tail -c +18 "$tmp/plain"; } >"$tmp/tag"
expect 1 'malformed record 0 at byte 0' "$bench" replay --trace="$tmp/tag" --modes=none
: >"$tmp/empty"
expect 1 'no transactions' "$bench" replay --trace="$tmp/empty" --modes=none
expect 1 'malformed entry at byte' "$bench" replay --trace="$tmp/plain" --before="$tmp/plain"

# Places that cannot be written, or are not ours.
mkdir -p "$tmp/mine/none"
expect 1 'was not made by pglog_bench' "$bench" replay $small --modes=none --limit=10 \
  --db="$tmp/mine"
[ -d "$tmp/mine/none" ] || fail "a foreign directory was removed"
expect 1 "$tmp/plain/none: Not a directory" "$bench" replay $small --modes=none --limit=10 \
  --db="$tmp/plain"
for mode in rocksdb "$late"; do
  (ulimit -f 2000 && expect 1 'File too large' "$bench" replay $small --modes="$mode" \
    --db="$tmp/small" && [ "$failures" -eq 0 ]) || fail "a full disk, mode $mode"
done

# A key space that differs is noticed: against the file, and by name of the PG.
sed '0,/"keys": 1273/s//"keys": 1274/' "$data/osd_small.after.json" >"$tmp/wrong.json"
expect 1 'PG 0000000000000417 has 1273 keys' "$bench" replay $small --modes=rocksdb \
  --group=256 --expect="$tmp/wrong.json"

[ "$failures" -eq 0 ] && echo "all equal"
[ "$failures" -eq 0 ]
