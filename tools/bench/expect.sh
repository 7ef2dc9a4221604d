# SPDX-License-Identifier: Apache-2.0
#
# What the tests of pglog_bench have in common, which read this file: $tmp, a directory that is gone at
# the end, and failures that are counted.

tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# expect CODE TEXT COMMAND...: it ends with that code, and its output has that text.
expect() {
  code=$1 text=$2
  shift 2
  "$@" >"$tmp/out" 2>"$tmp/err"
  got=$?
  [ "$got" -eq "$code" ] || fail "exit code $got, not $code: $*"
  cat "$tmp/out" "$tmp/err" | grep -q -F -e "$text" || fail "no \"$text\" from: $*"
  [ "$got" -eq "$code" ] || cat "$tmp/err"
}
