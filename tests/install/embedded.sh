#!/usr/bin/env bash
# embedded.sh PREFIX LIBDIR: a library that contains libkvevict.a offers its own
# functions and none of ours, in whichever way it was linked.
set -euo pipefail
archive=$1/$2/libkvevict.a
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >user.c <<'SOURCE'
#include <kvevict/kvevict.h>
const char* user_version(void);
const char* user_version(void) { return kvevict_version(); }
SOURCE

# offers DEFINITION LINK_ARGUMENTS...
offers() {
  cc -Wall -Wextra -Werror -shared -fPIC -I "$1/include" $2 user.c -o libuser.so "${@:3}" \
    -lstdc++ -lm
  local names
  names=$(nm --dynamic --defined-only --format=just-symbols libuser.so)
  echo "$*: $(wc -l <<<"$names") names"
  grep -qx user_version <<<"$names"
  ! grep kvevict <<<"$names"
}
for definition in -UKVEVICT_STATIC -DKVEVICT_STATIC; do
  offers "$1" $definition "$archive"
  offers "$1" $definition -Wl,--whole-archive "$archive" -Wl,--no-whole-archive
done
