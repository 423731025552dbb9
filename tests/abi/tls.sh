#!/bin/sh
# tls.sh LIBRARY: how much of each thread's storage the library takes. glibc has 1,664
# bytes for all libraries opened at run time, and does not open one that takes too much.
set -eu
size=$(LC_ALL=C readelf -lW "$1" | awk '$1 == "TLS" { print $6 }')
bytes=$((size))
echo "$bytes bytes of thread-local storage"
test "$bytes" -gt 0 && test "$bytes" -le 512
