#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs what is missing, builds, and runs all tests.
set -eu

usage() {
  cat <<END
usage: scripts/test.sh [options]
  --long                the long variants (an hour and more) after the others
  --sanitize=address    AddressSanitizer and UndefinedBehaviorSanitizer
  --sanitize=thread     ThreadSanitizer; the tests without librocksdb only
  --jobs=N              compilers and tests at a time (the number of processors, 8 at most)
END
}

fail() {
  echo "test.sh: $*" >&2
  exit 1
}

jobs=$(nproc)
[ "$jobs" -le 8 ] || jobs=8
long=false sanitize= build=build
for arg in "$@"; do
  case $arg in
    --long) long=true ;;
    --sanitize=address) sanitize="address;undefined" build=build-asan ;;
    --sanitize=thread) sanitize=thread build=build-tsan ;;
    --jobs=[1-9]*) jobs=${arg#*=} ;;
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

root=$(cd "$(dirname "$0")/.." && pwd)
"$root/scripts/setup.sh"
cd "$root"
cmake -S . -B "$build" -G Ninja -DPGLOG_SANITIZE="$sanitize"
cmake --build "$build" -j "$jobs"
ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$jobs"
[ "$long" = false ] || cmake --build "$build" --target long
