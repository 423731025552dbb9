#!/usr/bin/env bash
# cmake.sh PREFIX LIBDIR shared|static PROJECT: builds and runs a CMake project that
# finds kvevict with find_package.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$4" "$work/project"
target=kvevict::$([[ $3 == shared ]] && echo kvevict || echo static)
cmake -S "$work/project" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$1" \
  -DKVEVICT_TARGET="$target"
cmake --build "$work/build"
"$work/build/consumer"
