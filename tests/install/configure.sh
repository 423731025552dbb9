#!/usr/bin/env bash
# configure.sh CASE SOURCE: what CMake does with SOURCE as a part of another
# project, and if packages are missing. Only CMake's own checks are compiled: a stub
# stands for Highway.
set -euo pipefail
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/highway" "$work/parent"
touch "$work/stub.cc"
cat >"$work/highway/CMakeLists.txt" <<'CMAKE'
add_library(hwy STATIC ../stub.cc)
CMAKE
cat >"$work/no_programs.cmake" <<'CMAKE'
set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
CMAKE
cat >"$work/parent/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(parent C CXX)
add_library(hwy ${PARENT_HWY} ../stub.cc)
add_subdirectory(${SOURCE} kvevict)
add_executable(parent EXCLUDE_FROM_ALL ../stub.cc)
target_link_libraries(parent PRIVATE kvevict::kvevict)
CMAKE

fail() {
  echo "wrong: $*"
  exit 1
}
# configured FOLDER options...: whether it can be configured; prints CMake's output.
configured() {
  rm -rf "$work/build"
  cmake -S "$1" -B "$work/build" "${@:2}" 2>&1 | tee "$work/log"
}
# CMake wraps its sentences.
says() { [[ $(tr -s ' \n' ' ' <"$work/log") == *"$1"* ]] || fail "CMake does not say: $1"; }
in_parent() { configured "$work/parent" -DSOURCE="$source" "$@"; }
has_target() { cmake --build "$work/build" --target help | grep -- "$1"; }

case $1 in
  part_of_another)
    # Nothing that only the tests, tools and bindings need is asked for.
    disabled=()
    for package in fmt CLI11 nlohmann_json PkgConfig Threads; do
      disabled+=(-DCMAKE_DISABLE_FIND_PACKAGE_$package=ON)
    done
    in_parent -DPARENT_HWY=STATIC "${disabled[@]}"
    says "the target hwy that is here already"
    grep -q '^CMAKE_BUILD_TYPE:STRING=$' "$work/build/CMakeCache.txt" ||
      fail "the parent has got a build type"
    has_target kvevict_static || fail "no library"
    ! has_target 'kvevict_cli\|capi_plan\|engine_c\|package_' || fail "more than the library"
    cmake --install "$work/build" --prefix "$work/installed"
    [[ -z $(find "$work/installed" -type f 2>/dev/null) ]] || fail "kvevict is installed"

    in_parent -DPARENT_HWY=STATIC -DKVEVICT_INSTALL=ON "${disabled[@]}"
    ! cmake --install "$work/build" --prefix "$work/installed" 2>"$work/log" ||
      fail "installs without having been built"
    says libkvevict
    ;;
  wants_highway_static)
    ! in_parent -DPARENT_HWY=SHARED || fail "a shared Highway is accepted"
    says "The target hwy is a SHARED_LIBRARY"
    ;;
  missing_packages)
    ! configured "$source" -DKVEVICT_HIGHWAY_SOURCE="$work/highway" \
      -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON || fail "the program is built without CLI11"
    says "Not found: CLI11 (Debian: libcli11-dev). -DKVEVICT_BUILD_TOOLS=OFF does without."

    ! configured "$source" -DKVEVICT_HIGHWAY_SOURCE="$work/highway" \
      -DKVEVICT_BUILD_TOOLS=OFF -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON ||
      fail "the tests are built without pkg-config"
    says "PkgConfig (Debian: pkg-config)"
    says "-DKVEVICT_BUILD_TESTS=OFF does without."

    ! configured "$source" -DKVEVICT_HIGHWAY_SOURCE="$work/highway" \
      -DKVEVICT_BUILD_TOOLS=OFF -DKVEVICT_BUILD_TESTS=OFF -DKVEVICT_BUILD_BINDINGS=go \
      -DCMAKE_PROJECT_INCLUDE="$work/no_programs.cmake" || fail "a binding without its tools"
    says "-DKVEVICT_BUILD_BINDINGS=OFF, or a list, does without."

    # There is only a .NET runtime.
    printf '#!/bin/sh\nexit 145\n' >"$work/dotnet"
    chmod +x "$work/dotnet"
    runtime_alone=(-DSWIG="$work/dotnet" -DDOTNET="$work/dotnet" -DKVEVICT_BUILD_TOOLS=OFF
      -DKVEVICT_BUILD_TESTS=OFF)
    configured "$source" -DKVEVICT_HIGHWAY_SOURCE="$work/highway" "${runtime_alone[@]}" ||
      fail "C# is wanted without an SDK"
    says "Bindings: csharp is left out, not found: a .NET SDK"
    ! configured "$source" -DKVEVICT_HIGHWAY_SOURCE="$work/highway" "${runtime_alone[@]}" \
      -DKVEVICT_BUILD_BINDINGS=csharp || fail "C# is left out though listed"
    says "Bindings: not found, for csharp: a .NET SDK."
    ;;
esac
