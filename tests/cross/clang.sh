#!/usr/bin/env bash
# clang.sh BUILD windows|freebsd: clang accepts what BUILD compiles of core/, capi/,
# cuda/ and tools/, by its rules for that system and without a warning. Windows has
# mingw's headers, and kernels are read for one SIMD target, since their text is the
# same for all. FreeBSD's headers are not here: this machine's replace them, so it
# only shows that nothing needs Linux. Kernels use no system and are left out.
set -euo pipefail
source=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
build=$(realpath "$1")
left_out=()
clang=(clang++ -nostdinc++ -fsyntax-only -Werror -DHWY_COMPILE_ONLY_STATIC)
case $2 in
  windows) clang+=(--target=x86_64-pc-windows-gnu) gcc=x86_64-w64-mingw32-g++-posix ;;
  freebsd)
    clang+=(--target="$(uname -m)-unknown-freebsd14" -D_GNU_SOURCE) gcc=g++
    left_out=(-e /core/kernels/)
    ;;
esac
# GCC's folders, except for its own headers'.
for folder in $($gcc -x c++ -E -v - </dev/null 2>&1 |
  sed -n '/^#include <\.\.\.>/,/^End/s/^ //p' | grep -v '/lib/gcc/.*/include\(-fixed\)\?$'); do
  clang+=(-isystem "$folder")
done
# The part of GCC's commands that clang knows: definitions, folders, warnings.
commands=$(sed -n 's/^ *"command": "\(.*\)",\?$/\1/p' "$build/compile_commands.json" |
  sed 's/\\"/"/g' |
  sed -nE "s# -(O2|f[^ ]*|Wa,[^ ]*)##g
    s#^[^ ]+( [^ -][^ ]*)* (.*) -o [^ ]+ -c ($source/(core|cuda|tools)|$build/(CMakeFiles|core|tools))/#${clang[*]} \2 \3/#p" |
  grep -v -e -DKVEVICT_STATIC -e -DKVEVICT_STRUCTS "${left_out[@]}")
[[ $(wc -l <<<"$commands") -gt 80 ]]
xargs -P "$(nproc)" -d '\n' -n 1 bash -c <<<"$commands"
echo "$(wc -l <<<"$commands") sources are right to clang for $2"
