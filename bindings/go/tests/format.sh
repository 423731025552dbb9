#!/usr/bin/env bash
# format.sh GOFMT: every Go file is as gofmt writes it.
set -euo pipefail
files=$("$1" -l .)
[[ -z $files ]] || { echo "not formatted: $files" && exit 1; }
