#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# An ext4 on the disk. Starts nbdkit with the plugin on a socket in a temporary directory, presents the
# disk as a file (nbdfuse) and that as a block device (a loop device), makes a file system and writes
# files to it; stops the server, starts it again, verifies each file, has e2fsck look at everything
# else, and removes all of it again.
set -eu
. "$(dirname "$0")/server.sh"

usage() {
  cat <<END
usage: examples/blockdev/ext4.sh [options]
END
  common_usage
  cat <<END
Half of the disk is written. Exits with 77, and says why, when a tool that it needs is not installed,
or this user or machine cannot mount, has no FUSE or no loop devices.
END
}

for arg in "$@"; do
  common_option "$arg"
done

fuse= loop=
stop=fail # or skip: what is done when the machine refuses something

# When the script ends early. Without server and nbdfuse requests fail, so nothing waits for them.
undo_attach() {
  end "$fuse"
  undo_mount "$tmp/ext4"
  [ -z "$loop" ] || losetup --detach "$loop" || true
  undo_mount "$tmp/fuse"
}

undo_mount() {
  umount "$1" 2>/dev/null || umount --lazy "$1" 2>/dev/null || true
}

# The server's disk becomes $loop.
attach() {
  rm -f "$tmp/fuse.pid"
  nbdfuse -P "$tmp/fuse.pid" "$tmp/fuse/disk" --unix "$tmp/socket" &
  fuse=$!
  await "$tmp/fuse.pid" "$fuse" || $stop "nbdfuse cannot mount, see above"
  loop=$(losetup --find --show "$tmp/fuse/disk") || $stop "no loop device, see above"
}

# Others look at what is new in the system, and keep it busy for a moment.
unmount() {
  for try in 1 2 3 4 5 6 7 8 9; do
    umount "$1" 2>/dev/null && return
    sleep 0.$try
  done
  umount "$1" || fail "cannot unmount $1, see above"
}

detach() {
  losetup --detach "$loop"
  loop=
  unmount "$tmp/fuse"
  wait "$fuse" || fail "nbdfuse ended with $?"
  fuse=
}

make_ext4() {
  mkfs.ext4 -q "$loop" || fail "mkfs.ext4 failed, see above"
}

mount_ext4() {
  mount -t ext4 "$loop" "$tmp/ext4" || $stop "cannot mount an ext4, see above"
}

# All of it with a disk in memory: what fails here is no fault of the plugin.
try_machine() {
  stop=skip
  serve memory 8M
  attach
  make_ext4
  mount_ext4
  unmount "$tmp/ext4"
  detach
  stop_server
  stop=fail
}

# Sums are those of the data before the file system has seen them.
write_files() {
  limit=$(($(stat --file-system --format='%a * %S' "$tmp/ext4") / 2))
  files=0 bytes=0
  while :; do
    for n in 1 511 4097 70000 300000 1048576; do
      [ "$((bytes + n))" -le "$limit" ] || return 0
      file=$((files % 7))/$((files % 5))/$files
      mkdir -p "$tmp/ext4/${file%/*}"
      sum=$(head -c "$n" /dev/urandom | tee "$tmp/ext4/$file" | sha256sum)
      echo "${sum%% *}  $file" >>"$tmp/sums"
      files=$((files + 1)) bytes=$((bytes + n))
    done
  done
}

PATH=$PATH:/usr/sbin:/sbin
need nbdkit:nbdkit nbdfuse:libnbd-bin mkfs.ext4:e2fsprogs e2fsck:e2fsprogs losetup:mount \
  mount:mount umount:mount
[ "$(id -u)" -eq 0 ] || skip "not root, which mounts and loop devices are for"
[ -c /dev/fuse ] || skip "no /dev/fuse"
[ -c /dev/loop-control ] || skip "no loop devices: no /dev/loop-control"
prepare
undo=undo_attach
mkdir "$tmp/fuse" "$tmp/ext4"
try_machine

serve_disk
attach
make_ext4
mount_ext4
write_files
sync --file-system "$tmp/ext4"
unmount "$tmp/ext4"
detach
stop_server

serve_disk
attach
mount_ext4
(cd "$tmp/ext4" && sha256sum --check --quiet "$tmp/sums") ||
  fail "files are not what was written, see above"
unmount "$tmp/ext4"
e2fsck -fn "$loop" >"$tmp/e2fsck" 2>&1 || {
  cat "$tmp/e2fsck" >&2
  fail "e2fsck found errors"
}
detach
stop_server
echo "mode=$mode: $files files, $((bytes / 1024)) KiB verified by a new server, e2fsck is content"
