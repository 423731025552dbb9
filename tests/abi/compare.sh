#!/bin/sh
# compare.sh GOLDEN COMMAND...: fails with a diff if COMMAND does not print GOLDEN.
# KVEVICT_UPDATE_GOLDEN=1 rewrites GOLDEN instead.
set -eu
golden=$1
shift
actual=$("$@")
[ -n "$actual" ]
if [ "${KVEVICT_UPDATE_GOLDEN:-0}" = 1 ]; then
  printf '%s\n' "$actual" >"$golden"
fi
printf '%s\n' "$actual" | diff -u --label "$golden" --label actual "$golden" -
