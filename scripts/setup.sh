#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Makes sure that everything the project needs is installed: on Debian 12, as root, missing packages
# are installed; another user is told what to install. Says nothing when nothing is missing.
set -eu

build="cmake ninja-build gcc g++ libc6-dev pkg-config"
libraries="librocksdb-dev libaio-dev libzstd-dev libisal-dev libjansson-dev libssl-dev uthash-dev
  libgtest-dev nbdkit-plugin-dev libnbd-dev"
tools="bash rocksdb-tools zstd jq strace util-linux nbdkit fio libnbd-bin e2fsprogs mount gnuplot-nox"

fail() {
  echo "setup.sh: $*" >&2
  exit 1
}

# The packages of $* that are not installed.
missing() {
  for p in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || echo "$p"
  done
}

if ! command -v dpkg-query >/dev/null; then
  echo "setup.sh: this is not Debian; the build needs what these packages have:" \
    $build $libraries $tools >&2
else
  need=$(missing $build $libraries $tools | tr '\n' ' ')
  if [ -n "$need" ]; then
    [ "$(id -u)" -eq 0 ] || fail "missing packages; as root: apt-get install $need"
    echo "setup.sh: installing $need"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    if ! { apt-get -q -o Acquire::Retries=3 update &&
      apt-get -q -y -o Acquire::Retries=3 install --no-install-recommends $need; } >"$log" 2>&1; then
      tail -n 20 "$log" >&2
      rm -f "$log"
      fail "apt-get failed"
    fi
    rm -f "$log"
    need=$(missing $need | tr '\n' ' ')
    [ -z "$need" ] || fail "still missing after apt-get install: $need"
  fi
fi

# The plugin follows the WAL format and the order of file calls of this one version.
have=$(pkg-config --modversion rocksdb 2>/dev/null) ||
  fail "librocksdb is not found by pkg-config; 7.8.x is needed (Debian 12: librocksdb-dev 7.8.3)"
case $have in
  7.8.*) ;;
  *) fail "librocksdb is version $have; 7.8.x is needed (Debian 12: librocksdb-dev 7.8.3)" ;;
esac
