#!/usr/bin/env bash
# subproject.sh SOURCE HIGHWAY: a program whose CMake project contains kvevict and
# Highway compiles with CMake's own flags and without a warning. It uses one SIMD
# target, since the text is the same for all.
set -euo pipefail
source=$1 highway=$2
[[ -n $highway ]] || {
  echo "skipped: no source tree of Highway (KVEVICT_HIGHWAY_SOURCE)"
  exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$source/tests/install/consumer/main.c" "$work"
cat >"$work/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(engine C CXX)
add_compile_definitions(HWY_COMPILE_ONLY_STATIC)
set(HWY_ENABLE_TESTS OFF CACHE BOOL "")
set(HWY_ENABLE_CONTRIB OFF CACHE BOOL "")
set(HWY_ENABLE_EXAMPLES OFF CACHE BOOL "")
set(HWY_FORCE_STATIC_LIBS ON CACHE BOOL "")
add_subdirectory(${HIGHWAY} highway EXCLUDE_FROM_ALL)
add_subdirectory(${SOURCE} kvevict EXCLUDE_FROM_ALL)
foreach(linkage kvevict static)
  add_executable(engine_${linkage} main.c)
  target_link_libraries(engine_${linkage} PRIVATE kvevict::${linkage})
  install(TARGETS engine_${linkage})
endforeach()
CMAKE
cmake -S "$work" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DSOURCE="$source" \
  -DHIGHWAY="$highway"
cmake --build "$work/build" -j "$(nproc)" 2>&1 | tee "$work/log"
! grep -q 'warning:' "$work/log" || { echo "wrong: warnings" && exit 1; }
"$work/build/engine_kvevict"
"$work/build/engine_static"

# Only the engine's own files are installed.
cmake --install "$work/build" --prefix "$work/installed" >/dev/null
files=$(cd "$work/installed" && find . -type f | sort | tr '\n' ' ')
[[ $files == "./bin/engine_kvevict ./bin/engine_static " ]] ||
  { echo "wrong: installed $files" && exit 1; }
