#!/usr/bin/env bash
# install.sh BUILD LIBDIR LLAMA PROJECT: installs kvevict and the adapter, then
# builds and runs a C program by find_package and by pkg-config.
set -euo pipefail
build=$1 libdir=$2 llama=$3 project=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >/dev/null
cmake --install "$build" --prefix "$work/prefix" --component llama
# The tree may lie anywhere.
mv "$work/prefix" "$work/moved"

cp -R "$project" "$work/project"
cmake -S "$work/project" -B "$work/build" -G Ninja -DLLAMA_DIR="$llama" \
  -DCMAKE_PREFIX_PATH="$work/moved" >/dev/null
cmake --build "$work/build"
"$work/build/consumer"

cd "$work"
export PKG_CONFIG_PATH=$work/moved/$libdir/pkgconfig
read -ra flags <<<"$(pkg-config --cflags --libs kvevict-llama)"
cc -std=c11 -Wall -Wextra -pedantic -Werror -isystem "$llama/include" \
  project/main.c -o main "${flags[@]}" "$llama"/lib/libllama.*so* \
  "$llama"/lib/libggml{.*,-base}.so*
LD_LIBRARY_PATH=$work/moved/$libdir:$llama/lib ./main

if [[ -x moved/bin/kvevict-llama-cli ]]; then
  LD_LIBRARY_PATH=$llama/lib moved/bin/kvevict-llama-cli --version
fi
