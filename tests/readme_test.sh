#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Proves that the first C program in README.md is examples/minimal.c, which is built and run as a
# test, without the comment at its head. Usage: readme_test.sh SOURCE_DIR
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
awk '/^```c$/ { inside = 1; next } inside && /^```$/ { exit } inside' "$1/README.md" >"$tmp/readme.c"
sed -n '/^#include/,$p' "$1/examples/minimal.c" >"$tmp/minimal.c"
[ -s "$tmp/readme.c" ] || { echo "README.md has no C program"; exit 1; }
diff -u "$tmp/minimal.c" "$tmp/readme.c"
echo "equal"
