#!/bin/sh
# header_alone.sh gcc|clang HEADER: the header compiles by itself, without a warning,
# in every language standard it promises.
set -eu
case $1 in
  gcc) cxx=g++ ;;
  clang) cxx=clang++ ;;
esac
command -v "$1" >/dev/null && command -v "$cxx" >/dev/null || {
  echo "$1 is not installed"
  exit 77
}
check() { # compiler language standard
  printf '#include "%s"\n' "$header" |
    "$1" -x "$2" -std="$3" -Wall -Wextra -pedantic -Werror -fsyntax-only -
  echo "$1 -std=$3: fine"
}
header=$2
for standard in c99 c11; do check "$1" c $standard; done
for standard in c++11 c++14 c++17 c++20; do check "$cxx" c++ $standard; done
