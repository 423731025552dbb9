#!/usr/bin/env bash
# program.sh PREFIX LIBDIR VERSION [LIBRARY_PATH]: the installed program finds its
# library, by itself or where the dynamic linker is told to look, and names the version
# it was built from. grep reads everything, since a program must not lose its reader.
set -euo pipefail
LD_LIBRARY_PATH=${4:-} "$1/bin/kvevict" inspect --json | tee /dev/stderr |
  grep "\"$3\"" >/dev/null
