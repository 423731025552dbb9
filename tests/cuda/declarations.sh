#!/usr/bin/env bash
# declarations.sh COMPILER SOURCE_DIR: compares the declarations in cuda/ with
# NVIDIA's headers in CUDA_HOME, /usr/local/cuda or the compiler's folder.
set -euo pipefail
compiler=$1 source=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
check=("$compiler" -std=c++20 -fsyntax-only -I "$folder" -I "$source"
  -idirafter "${CUDA_HOME:-/usr/local/cuda}/include")
if ! "${check[@]}" -x c++ - <<<'#include <nvrtc.h>' 2>/dev/null ||
  ! "${check[@]}" -x c++ - <<<'#include <cuda.h>' 2>/dev/null; then
  echo "skipped: no cuda.h and nvrtc.h here"
  exit 77
fi
sed -nE 's/^ +((CU|NVRTC)[A-Z0-9_]+) = ([0-9]+).*/static_assert(\1 == \3);/p' \
  "$source/cuda/driver.h" "$source/cuda/jit.h" >"$folder/enumerators.inc"
n=$(wc -l <"$folder/enumerators.inc")
"${check[@]}" "$source/tests/cuda/declarations.cc"
echo "$n numbers and all functions are as in the headers"
[[ $n -gt 30 ]]
