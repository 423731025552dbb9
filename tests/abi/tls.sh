#!/bin/sh
# tls.sh LIBRARY: what the library takes of each thread's storage. glibc has 1,664 bytes
# for all libraries that are opened at run time; one that takes too much is not opened.
set -eu
size=$(LC_ALL=C readelf -lW "$1" | awk '$1 == "TLS" { print $6 }')
bytes=$((size))
echo "$bytes bytes of thread-local storage"
test "$bytes" -gt 0 && test "$bytes" -le 512
