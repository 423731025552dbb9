#!/usr/bin/env bash
# own_tmp.sh COMMAND...: runs it with a folder of its own for temporary files, since dotnet
# leaves some behind.
set -euo pipefail
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
"$@"
