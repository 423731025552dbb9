#!/usr/bin/env bash
# example.sh PROJECT: builds and runs an example; skipped where its packages cannot be restored.
set -euo pipefail
dotnet restore -v quiet "$1" || {
  echo "skipped: the packages of ${1##*/} cannot be restored"
  exit 77
}
dotnet run --no-restore -c Release -v quiet --project "$1"
