#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs what is missing, builds, and replays the bundled trace of a real OSD through plain RocksDB
# and through the plugin. Ends with a table of what the plugin saved.
set -eu

usage() {
  cat <<END
usage: scripts/demo.sh [options]
  --passes=N     times the trace is gone through (60: long enough for plain RocksDB to flush the pg
                 log at least 3 times; otherwise the byte figures flatter it)
  --rounds=N     runs of each mode, in turn; medians are shown (1)
  --dir=DIR      where the databases go, about 3 GB for a while (build/); all of it is removed
END
}

fail() {
  echo "demo.sh: $*" >&2
  exit 1
}

root=$(cd "$(dirname "$0")/.." && pwd)
passes=60 rounds=1 dir=$root/build
for arg in "$@"; do
  case $arg in
    --passes=[1-9]*) passes=${arg#*=} ;;
    --rounds=[1-9]*) rounds=${arg#*=} ;;
    --dir=?*) dir=$(cd "${arg#*=}" && pwd) || fail "no directory ${arg#*=}" ;;
    -h | --help)
      usage
      exit
      ;;
    *)
      usage >&2
      fail "unknown option $arg"
      ;;
  esac
done

"$root/scripts/setup.sh"
cd "$root"
cmake -S . -B build -G Ninja
cmake --build build --target pglog_bench

tmp=$(mktemp -d "$dir/demo.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
data=tests/data/osd_small
replay() {
  build/tools/bench/pglog_bench replay --trace=$data.trace.zst --before=$data.before.zst \
    --db="$tmp/db" --json "$@" >"$tmp/json" || fail "pglog_bench failed"
}

echo
echo "The trace once: do both end with the pg log of the real OSD, before and after reopening?"
replay --modes=rocksdb,split --expect=$data.after.json
jq -r '.modes | to_entries[] | .key as $mode | .value.after
  | "  \($mode): yes, \(.keys) keys, \(.bytes) bytes, SHA-256 \(.sha256)"' "$tmp/json"

echo "The trace $passes times, 32 transactions a group commit: a few minutes."
replay --modes=none,rocksdb,split --passes="$passes" --rounds="$rounds" --check
jq -r '
  def pad(n): tostring | (n - length) as $k | if $k > 0 then " " * $k + . else . end;
  def name(n): . + " " * (n - length);
  def fix(d): if d == 0 then round else (. * 10 | round) / 10 end;
  def row(what; r; s; d; less):
    "  " + (what | name(52)) + (r | fix(d) | pad(10)) + (s | fix(d) | pad(10))
    + (if r > 0 then (if less then 1 - s / r else s / r - 1 end * 100 | round
       | (if . > 0 and (less | not) then "+" else "" end) + tostring + " %") else "-" end | pad(10));
  .modes.none as $n | .modes.rocksdb as $r | .modes.split as $s
  | "\n\(.transactions) transactions, \(.pglog_logical_bytes_per_txn | round) bytes of pg log in each",
    "  " + ("per transaction" | name(52)) + ("RocksDB" | pad(10)) + ("plugin" | pad(10)) + ("less" | pad(10)),
    row("CPU, us"; $r.cpu_us_per_txn; $s.cpu_us_per_txn; 1; true),
    row("  of it for the pg log (over no pg log at all)";
        $r.cpu_us_per_txn - $n.cpu_us_per_txn; $s.cpu_us_per_txn - $n.cpu_us_per_txn; 1; true),
    row("bytes written to files"; $r.bytes_per_txn.total; $s.bytes_per_txn.total; 0; true),
    row("  of it for the pg log"; $r.bytes_per_txn.total - $n.bytes_per_txn.total;
        $s.bytes_per_txn.total - $n.bytes_per_txn.total; 0; true),
    row("  WAL"; $r.bytes_per_txn.wal; $s.bytes_per_txn.wal; 0; true),
    row("  flush, compaction, arena and the rest";
        $r.bytes_per_txn.total - $r.bytes_per_txn.wal;
        $s.bytes_per_txn.total - $s.bytes_per_txn.wal; 0; true),
    "  in all",
    row("pg log on disk, KB"; $r.pglog_space_bytes.live / 1000; $s.pglog_space_bytes.live / 1000; 0; true),
    row("commit latency p50, us"; $r.commit_us.p50; $s.commit_us.p50; 0; true),
    row("commit latency p99, us"; $r.commit_us.p99; $s.commit_us.p99; 0; true),
    row("peak memory, MB"; $r.peak_rss_bytes / 1e6; $s.peak_rss_bytes / 1e6; 0; true),
    row("transactions per second (more)"; $r.txns_per_s; $s.txns_per_s; 0; false),
    (if $r.p_flushes < 3 then
       "  Plain RocksDB flushed the pg log \($r.p_flushes) times only: take more --passes before"
       + " quoting the bytes." else empty end),
    "Both end with the same \($s.after.keys) keys (SHA-256 \($s.after.sha256)), before and after reopening."
    ' "$tmp/json"
equal=$(jq '.modes.rocksdb.after == .modes.split.after' "$tmp/json")
[ "$equal" = true ] || fail "the key spaces differ"
