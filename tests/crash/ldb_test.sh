#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Proves that a stock ldb with the plugin preloaded keeps what it does not know of: a database of
# the facade is killed with pg log staged in two WALs; `ldb put` recovers it, flushes, and deletes
# those WALs; afterwards the facade finds the same pg log, all of it in the arena. Without the
# plugin the same put is refused and changes nothing.
#
# usage: ldb_test.sh LIBPGLOG CRASH_TOOL
set -u
lib=$(readlink -f "$1")
tool=$2
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
bad=0
fail() {
  echo "FAILED, $rule rule: $*"
  bad=1
}
# Files and their bytes, but for RocksDB's own log, which it writes when it only tries.
state() {
  (cd "$1" && find . -type f ! -name 'LOG*' ! -name LOCK -print0 | sort -z | xargs -0 sha256sum)
}
stat_of() { awk -v name="$1" '$1 == name { print $2 }' "$tmp/stats"; }

for rule in default ceph; do
  db=$tmp/$rule
  "$tool" two-wals "$db" $rule &
  wait $! 2>/dev/null
  [ $? = 137 ] || fail "making the database: not killed"
  wals=$(cd "$db" && ls ./*.log)
  [ "$(wc -w <<<"$wals")" -ge 2 ] || fail "only these WALs: $wals"

  # The facade on a copy says what is right.
  cp -r "$db" "$tmp/copy"
  "$tool" dump "$tmp/copy" $rule 2>"$tmp/stats" >"$tmp/want" || fail "dump of the copy"
  rm -rf "$tmp/copy"
  want=$(sha256sum <"$tmp/want")
  # Opening hands the WALs over, and the check point that follows may be done by now: what counts is
  # that the entries came from the WALs.
  [ "$(stat_of recovered_blobs)" -gt 0 ] || fail "nothing was recovered from the copy's WALs"
  [ "$(wc -l <"$tmp/want")" -gt 100 ] || fail "too few pg log keys"

  # Without the plugin.
  before=$(state "$db")
  out=$(ldb --db="$db" put k v 2>&1)
  rc=$?
  [ $rc != 0 ] || fail "ldb without the plugin is not refused: $out"
  grep -q 'pglog.guard' <<<"$out" || fail "ldb without the plugin does not name the guard: $out"
  [ "$(state "$db")" = "$before" ] || fail "ldb without the plugin has changed the database"

  # With it. No rule is named: the arena knows it.
  out=$(LD_PRELOAD=$lib ldb --db="$db" --fs_uri=pglog:// put k v 2>&1)
  rc=$?
  [ $rc = 0 ] && grep -q OK <<<"$out" || fail "ldb put with the plugin, exit status $rc: $out"
  for wal in $wals; do
    [ ! -e "$db/$wal" ] || fail "$wal is still there after ldb"
  done
  out=$(LD_PRELOAD=$lib ldb --db="$db" --fs_uri=pglog:// get k 2>&1)
  [ "$out" = v ] || fail "ldb get: $out"

  "$tool" dump "$db" $rule 2>"$tmp/stats" >"$tmp/got" || fail "dump"
  [ "$(sha256sum <"$tmp/got")" = "$want" ] ||
    fail "another pg log: $(diff "$tmp/want" "$tmp/got" | head -3)"
  [ "$(stat_of index_entries)" = "$(wc -l <"$tmp/want")" ] ||
    fail "the arena has $(stat_of index_entries) of $(wc -l <"$tmp/want") entries"
  [ "$(stat_of layers)" = 0 ] || fail "there are still $(stat_of layers) staged layers"
  [ "$(stat_of recovered_blobs)" = 0 ] || fail "$(stat_of recovered_blobs) blobs came from WALs"
  echo "$rule rule: $(wc -l <"$tmp/want") pg log keys from $(wc -w <<<"$wals") WALs," \
    "SHA-256 ${want%% *}"
done
[ $bad = 0 ] && echo PASSED
exit $bad
