#!/bin/sh
# header_alone.sh gcc|clang HEADERS [options of the compiler]: every header of the
# folder compiles alone, without a warning, in every language standard it promises.
set -eu
case $1 in
  gcc) cxx=g++ ;;
  clang) cxx=clang++ ;;
esac
command -v "$1" >/dev/null && command -v "$cxx" >/dev/null || {
  echo "$1 is not installed"
  exit 77
}
check() { # language standard command...
  language=$1 standard=$2
  shift 2
  for header in "$headers"/*.h; do
    printf '#include "%s"\n' "$header" |
      "$@" -I"$(dirname "$headers")" -x "$language" -std="$standard" -Wall -Wextra \
        -pedantic -Werror -fsyntax-only -
  done
  echo "$* -std=$standard: fine"
}
cc=$1 headers=$2
shift 2
for standard in c99 c11; do check c $standard "$cc" "$@"; done
for standard in c++11 c++14 c++17 c++20; do check c++ $standard "$cxx" "$@"; done
