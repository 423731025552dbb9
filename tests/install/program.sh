#!/usr/bin/env bash
# program.sh PREFIX LIBDIR VERSION: the installed program finds its library and names
# the version it was built from.
set -euo pipefail
env -u LD_LIBRARY_PATH "$1/bin/kvevict" inspect --json | tee /dev/stderr |
  grep -q "\"$3\""
