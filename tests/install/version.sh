#!/usr/bin/env bash
# version.sh PREFIX LIBDIR VERSION: find_package() accepts the installed VERSION,
# and, before 1.0, no other minor version.
set -euo pipefail
IFS=. read -r major minor _ <<<"$3"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.16)
project(asks LANGUAGES C)
foreach(version IN LISTS ACCEPTED REFUSED)
  find_package(kvevict ${version} CONFIG QUIET)
  set(answer REFUSED)
  if(kvevict_FOUND)
    set(answer ACCEPTED)
  endif()
  message(STATUS "find_package(kvevict ${version}): ${answer}")
  if(NOT version IN_LIST ${answer})
    message(SEND_ERROR "wrong")
  endif()
endforeach()
CMAKE
refused="$major.$((minor + 1));$((major + 1)).0"
if ((major == 0 && minor > 0)); then refused+=";0.$((minor - 1))"; fi
cmake -S "$work" -B "$work/build" -DCMAKE_PREFIX_PATH="$1" \
  -DACCEPTED="$3;$major.$minor" -DREFUSED="$refused"
