#!/usr/bin/env bash
# clang.sh BUILD: what is built there for Windows of core/, capi/, cuda/ and tools/ is
# right to clang too, by its rules for that system and without a warning. Kernels are
# read for one SIMD target; they are the same text for all.
set -euo pipefail
source=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
build=$(realpath "$1")
headers=$(x86_64-w64-mingw32-g++-posix -print-file-name=include/c++)
clang=(clang++ --target=x86_64-pc-windows-gnu -nostdinc++ -isystem "$headers"
  -isystem "$headers/x86_64-w64-mingw32" -fsyntax-only -Werror -DHWY_COMPILE_ONLY_STATIC)
# Of GCC's commands what clang knows: definitions, folders, warnings.
commands=$(sed -n 's/^ *"command": "\(.*\)",\?$/\1/p' "$build/compile_commands.json" |
  sed 's/\\"/"/g' |
  sed -nE "s# -(O2|f[^ ]*|Wa,[^ ]*)##g
    s#^[^ ]+ (.*) -o [^ ]+ -c ($source/(core|capi|cuda|tools)|$build/tools)/#${clang[*]} \1 \2/#p" |
  grep -v -e -DKVEVICT_STATIC)
[[ $(wc -l <<<"$commands") -gt 100 ]]
xargs -P "$(nproc)" -d '\n' -n 1 bash -c <<<"$commands"
echo "$(wc -l <<<"$commands") sources are right to clang"
