#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Starts nbdkit with the plugin on a socket in a temporary directory, writes 4K blocks in random order
# with fio, reads them back and verifies each, and removes everything again.
set -eu
. "$(dirname "$0")/server.sh"

usage() {
  cat <<END
usage: examples/blockdev/fio.sh [options]
  --iodepth=N            requests at a time (32)
  --runtime=N            stop writing after N seconds (10)
END
  common_usage
  cat <<END
All of the disk is written, once. Exits with 77 when nbdkit or fio, which it needs, is not installed.
END
}

iodepth=32 runtime=10
for arg in "$@"; do
  case $arg in
    --iodepth=[1-9]*) iodepth=${arg#*=} ;;
    --runtime=[1-9]*) runtime=${arg#*=} ;;
    *) common_option "$arg" ;;
  esac
done

need nbdkit:nbdkit fio:fio
prepare
serve_disk -t "$iodepth" # by default nbdkit has 16 threads for a connection

# Each block is written once, so what is read back has one right content. The size is that of the disk.
fio --name="$mode" --ioengine=nbd --uri="nbd+unix:///?socket=$tmp/socket" --rw=randwrite --bs=4k \
  --iodepth="$iodepth" --runtime="$runtime" --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
  --randrepeat=0 --output-format=normal,terse --output="$tmp/fio" || {
  cat "$tmp/fio" >&2
  fail "fio failed"
}
grep -v '^3;' "$tmp/fio"

# Terse fields: 5 is the error, 6 and 47 are KiB read and written, 49 is writes per second.
grep '^3;' "$tmp/fio" | awk -F ';' -v mode="$mode" '
  $5 == 0 && $47 > 0 && $6 == $47 { ok = 1; print "mode=" mode ": " $49 " writes/s, " $47 " KiB verified" }
  END { exit !ok }' || fail "fio did not write and verify as much as it should have"

stop_server
