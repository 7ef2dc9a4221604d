#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# PG logs in the log store against PG logs in RocksDB, by what a client of the disk sees: 4K random
# writes with fio, on a new disk for each run, both modes in turn.
set -eu
. "$(dirname "$0")/server.sh"

usage() {
  cat <<END
usage: examples/blockdev/compare.sh [options]
  --iodepth=N,N,..       requests at a time, a table for each (1,32)
  --runtime=N            seconds of each run (20)
  --rounds=N             runs of each mode; medians are reported (5)
END
  common_usage
  cat <<END
Processor time is that of nbdkit, the client's is left out. --mode means nothing here. Exits with 77 when
nbdkit, fio or jq, which it needs, is not installed.
END
}

# Microseconds that the server's threads have been on a processor.
server_cpu() {
  ticks=$(sed 's/.*) //' "/proc/$server/stat" | cut -d ' ' -f 12,13 | tr ' ' '+')
  echo $((($ticks) * 1000000 / $(getconf CLK_TCK)))
}

# One run; a line with its figures goes to $tmp/figures.
run() {
  serve_disk -t "$iodepth"
  cpu=$(server_cpu)
  fio --name="$mode" --ioengine=nbd --uri="nbd+unix:///?socket=$tmp/socket" --rw=randwrite --bs=4k \
    --iodepth="$iodepth" --time_based --runtime="$runtime" --randrepeat=0 --output-format=json \
    --output="$tmp/fio" || {
    cat "$tmp/fio" >&2
    fail "fio failed"
  }
  cpu=$(($(server_cpu) - cpu))
  jq -c --arg mode "$mode" --argjson depth "$iodepth" --argjson cpu "$cpu" '.jobs[0] |
    if .error != 0 or .write.total_ios == 0 then error("fio wrote nothing, error \(.error)") else
    {mode: $mode, depth: $depth, iops: .write.iops, cpu: ($cpu / .write.total_ios),
     p50: (.write.clat_ns.percentile["50.000000"] / 1000),
     p99: (.write.clat_ns.percentile["99.000000"] / 1000)} end' "$tmp/fio" >>"$tmp/figures" ||
    fail "no figures from fio, see above"
  stop_server
  rm -rf "$tmp/disk"
}

depths=1,32 runtime=20 rounds=5 size=1G
for arg in "$@"; do
  case $arg in
    --iodepth=[1-9]*) depths=${arg#*=} ;;
    --runtime=[1-9]*) runtime=${arg#*=} ;;
    --rounds=[1-9]*) rounds=${arg#*=} ;;
    *) common_option "$arg" ;;
  esac
done

need nbdkit:nbdkit fio:fio jq:jq
prepare
order="rocksdb split"
for iodepth in $(echo "$depths" | tr , ' '); do
  round=0
  while [ "$round" -lt "$rounds" ]; do
    for mode in $order; do
      run
    done
    order="${order#* } ${order% *}" # neither is always the first
    round=$((round + 1))
  done
done

jq -r -s 'def median: sort | (.[(length - 1) / 2 | floor] + .[length / 2 | floor]) / 2;
  def figures: {iops: (map(.iops) | median), cpu: (map(.cpu) | median), p50: (map(.p50) | median),
                p99: (map(.p99) | median), all: (map(.iops | round | tostring) | join(" "))};
  def n(d): . * pow(10; d) | round / pow(10; d) | tostring;
  group_by(.depth)[] | .[0].depth as $d |
  (map(select(.mode == "rocksdb")) | figures) as $r | (map(select(.mode == "split")) | figures) as $s |
  ["iodepth \($d)", "IOPS", "CPU us/write", "p50 us", "p99 us", "IOPS of the rounds"],
  ["rocksdb", ($r.iops | n(0)), ($r.cpu | n(1)), ($r.p50 | n(0)), ($r.p99 | n(0)), $r.all],
  ["split", ($s.iops | n(0)), ($s.cpu | n(1)), ($s.p50 | n(0)), ($s.p99 | n(0)), $s.all],
  ["ratio", ($s.iops / $r.iops | n(3)), ($s.cpu / $r.cpu | n(3)), ($s.p50 / $r.p50 | n(3)),
   ($s.p99 / $r.p99 | n(3)), ""] | @tsv' "$tmp/figures" |
  awk -F '\t' '{ printf "%-10s %8s %13s %8s %8s   %s\n", $1, $2, $3, $4, $5, $6 }'
echo "(the proof of concept of 2018 had 1.139 times the IOPS at random 4K writes)"
