#!/usr/bin/env bash
# xunit.sh PROJECT: builds and runs the tests; skipped where xunit cannot be restored.
set -euo pipefail
dotnet restore -v quiet "$1" || {
  echo "skipped: the test packages (xunit) cannot be restored"
  exit 77
}
# The lines say what ran. The compiler's output is shown only with an error.
dotnet build --no-restore -c Release -v quiet "$1"
dotnet test --no-build -c Release --logger "console;verbosity=normal" "$1"
