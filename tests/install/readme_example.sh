#!/usr/bin/env bash
# readme_example.sh PREFIX LIBDIR README: the README's C example is under 40 lines,
# compiles as C11 without a warning, runs, and frees what it made.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PKG_CONFIG_PATH=$1/$2/pkgconfig
awk '/^```c$/ { inside = 1; next } /^```$/ { if (inside) exit } inside' "$3" \
  >"$work/engine.c"
lines=$(wc -l <"$work/engine.c")
echo "$lines lines"
((lines > 0 && lines < 40))
read -ra flags <<<"$(pkg-config --cflags --libs kvevict)"
cd "$work"
cc -std=c11 -Wall -Wextra -pedantic -Werror engine.c -o engine "${flags[@]}"
LD_LIBRARY_PATH=$1/$2 ./engine | tee output
[[ -s output ]]

if cc -std=c11 -fsanitize=address engine.c -o engine_asan "${flags[@]}"; then
  LD_LIBRARY_PATH=$1/$2 ASAN_OPTIONS=detect_leaks=1 ./engine_asan
else
  echo "skipped: no AddressSanitizer to look for leaks"
fi
