#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Starts nbdkit with the plugin on a socket in a temporary directory, writes 4K blocks in random order
# with fio, reads them back and verifies each, and removes everything again.
set -eu

usage() {
  cat <<END
usage: examples/blockdev/fio.sh [options]
  --mode=split|rocksdb   where the PG logs are kept (split)
  --size=N               of the disk, with K, M or G; all of it is written, once (64M)
  --iodepth=N            requests at a time (32)
  --runtime=N            stop writing after N seconds (10)
  --queue=fast|sharded|single, --shards=N, --threads=N
                         given to the plugin
  --plugin=FILE          the plugin (build/examples/blockdev/nbdkit-osdcore-plugin.so)
  --dir=DIR              where the temporary directory is made, not a tmpfs: syncs are free there
                         (\$TMPDIR or /tmp)
Exits with 77 when nbdkit or fio, which it needs, is not installed.
END
}

fail() {
  echo "fio.sh: $*" >&2
  exit 1
}

root=$(cd "$(dirname "$0")/../.." && pwd)
plugin=$root/build/examples/blockdev/nbdkit-osdcore-plugin.so
mode=split size=64M iodepth=32 runtime=10 parent=${TMPDIR:-/tmp} more=
for arg in "$@"; do
  case $arg in
    --mode=split | --mode=rocksdb) mode=${arg#*=} ;;
    --size=[1-9]*) size=${arg#*=} ;;
    --iodepth=[1-9]*) iodepth=${arg#*=} ;;
    --runtime=[1-9]*) runtime=${arg#*=} ;;
    --queue=[a-z]* | --shards=[0-9]* | --threads=[0-9]*) more="$more ${arg#--}" ;;
    --plugin=?*) plugin=${arg#*=} ;;
    --dir=?*) parent=${arg#*=} ;;
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

missing=
for tool in nbdkit fio; do
  command -v $tool >/dev/null || missing="$missing $tool"
done
if [ -n "$missing" ]; then
  echo "SKIPPED: not installed:$missing (Debian packages of the same name)"
  exit 77
fi
[ -f "$plugin" ] || fail "$plugin is not there; build it, or give another one by --plugin=FILE"

tmp=$(mktemp -d "$parent/blockdev.XXXXXX") || fail "no temporary directory in $parent"
server=
cleanup() {
  [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
  rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

# nbdkit writes its process id to -P when it serves. By default it has 16 threads for a connection.
nbdkit -f -t "$iodepth" -U "$tmp/socket" -P "$tmp/pid" "$plugin" "dir=$tmp/disk" "size=$size" \
  "mode=$mode" $more &
server=$!
while [ ! -s "$tmp/pid" ]; do
  kill -0 "$server" 2>/dev/null || fail "nbdkit ended, see above"
  sleep 0.1
done

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

kill "$server"
wait "$server" || fail "nbdkit ended with $?"
server=
