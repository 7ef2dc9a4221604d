# SPDX-License-Identifier: Apache-2.0
#
# What the scripts here have in common, which read this file: options, and nbdkit with the plugin on a
# socket in a temporary directory. Both are gone when the script ends.

self=${0##*/}
root=$(cd "$(dirname "$0")/../.." && pwd)
plugin=$root/build/examples/blockdev/nbdkit-osdcore-plugin.so
mode=split size=64M parent=${TMPDIR:-/tmp} more=
tmp=
run= disk=       # of the next server: the directory of its socket, and that of its store
server= servers= # processes: the one that was started last, all
undo=: # what the script has to undo when it ends, the server is no longer there then

fail() {
  echo "$self: $*" >&2
  exit 1
}

skip() {
  echo "SKIPPED: $*"
  exit 77
}

common_usage() {
  cat <<END
  --mode=split|rocksdb   where the PG logs are kept (split)
  --size=N               of the disk, with K, M or G (64M)
  --queue=fast|sharded|single, --shards=N, --threads=N
                         given to the plugin
  --plugin=FILE          the plugin (build/examples/blockdev/nbdkit-osdcore-plugin.so)
  --dir=DIR              where the temporary directory is made, not a tmpfs: syncs are free there
                         (\$TMPDIR or /tmp)
END
}

# An option that is none of the script's own; usage() is the script's.
common_option() {
  case $1 in
    --mode=split | --mode=rocksdb) mode=${1#*=} ;;
    --size=[1-9]*) size=${1#*=} ;;
    --queue=[a-z]* | --shards=[0-9]* | --threads=[0-9]*) more="$more ${1#--}" ;;
    --plugin=?*) plugin=${1#*=} ;;
    --dir=?*) parent=${1#*=} ;;
    -h | --help)
      usage
      exit
      ;;
    *)
      usage >&2
      fail "unknown option $1"
      ;;
  esac
}

# need TOOL:PACKAGE...
need() {
  missing=
  for tool in "$@"; do
    command -v "${tool%:*}" >/dev/null ||
      missing="$missing${missing:+,} ${tool%:*} (Debian package ${tool#*:})"
  done
  [ -z "$missing" ] || skip "not installed:$missing"
}

# end PROCESS, which may be empty.
end() {
  [ -z "$1" ] || {
    kill -KILL "$1"
    wait "$1"
  } 2>/dev/null || true
}

cleanup() {
  trap '' HUP INT PIPE TERM # not half of it
  for process in $servers; do
    end "$process"
  done
  $undo
  rm -rf --one-file-system "$tmp"
}

prepare() {
  [ -f "$plugin" ] || fail "$plugin is not there; build it, or give another one by --plugin=FILE"
  tmp=$(cd "$parent" && mktemp -d "$PWD/blockdev.XXXXXX") ||
    fail "no temporary directory in $parent"
  run=$tmp disk=$tmp/disk
  trap cleanup EXIT
  trap 'exit 1' HUP INT PIPE TERM
}

# await FILE PROCESS: until the process has written its id to the file, which it does when it serves.
await() {
  while [ ! -s "$1" ]; do
    kill -0 "$2" 2>/dev/null || return 1
    sleep 0.1
  done
}

# serve ARGUMENTS...: nbdkit with these, on $run/socket.
serve() {
  rm -f "$run/pid" "$run/socket"
  nbdkit -f -U "$run/socket" -P "$run/pid" "$@" &
  server=$! servers="$servers $!"
  await "$run/pid" "$server" || fail "nbdkit ended, see above"
}

# serve_disk [OPTIONS OF NBDKIT...]: the one in $disk
serve_disk() {
  serve "$@" "$plugin" "dir=$disk" "size=$size" "mode=$mode" $more
}

stop_server() {
  kill "$server"
  wait "$server" || fail "nbdkit ended with $?"
  servers=${servers# "$server"} server=
}
