#!/usr/bin/env bash
# consumer.sh FEED: the README's commands and its program in an empty folder, with the package
# from FEED and nothing else of ours; built, and published for one platform.
set -euo pipefail
feed=$1
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The user's own cache may hold a stale package of the same version.
export NUGET_PACKAGES=$KvEvictBuild/../../integrations/LLamaSharp/consumer-packages
rm -rf "$NUGET_PACKAGES/kvevict.llamasharp"
unset KvEvictBuild
mkdir "$work/chat"
cd "$work/chat"
dotnet new console >/dev/null
mapfile -t commands < <(grep '^dotnet ' "$here/README.md")
for command in "${commands[@]}"; do
  eval "${command/\/path\/to\/dist/$feed}" >>log 2>&1 || {
    cat log
    grep -q 'NU1101\|NU1301\|NU1102' log || exit 1
    echo "skipped: the package's dependencies cannot be restored"
    exit 77
  }
done

# The program, with a smaller cache.
awk '/^```csharp$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$here/README.md" |
  sed 's/ContextSize = 8192, BatchSize = 512/ContextSize = 256, BatchSize = 64, Threads = 1, BatchThreads = 1/
    s/budget=2048/budget=96/' >Program.cs
cp "$here"/consumer/*.cs .
grep -q 'ContextSize = 256.*' Program.cs && grep -q 'budget=96' Program.cs
"$KVEVICT_TEST_WRITE_MODEL" "$work/model.gguf" llama

run() { # run PROGRAM: random weights end the text by chance, so the prompt alone outgrows the cache
  local output
  output=$(head -c 700 </dev/zero | tr '\0' x | sed 's/x/word /g' | head -c 900 |
    "$1" "$work/model.gguf" 40 2>err) || { cat err && exit 1; }
  tail -n 1 <<<"$output"
  grep -Eq '^[0-9]{3,4} tokens seen, [0-9]{2,3} kept, [1-9][0-9]* evictions$' <<<"$output"
}

dotnet build -c Release -v quiet -o "$work/built" >log 2>&1 || { cat log && exit 1; }
run "$work/built/chat"
dotnet publish -c Release -v quiet -r linux-x64 --self-contained false -o "$work/published" >log 2>&1 ||
  { cat log && exit 1; }
[[ -e $work/published/libkvevict-llamasharp.so ]]
run "$work/published/chat"

# What is done in the wrong order, and what is missing, is said.
says() { # says TEXT COMMAND...
  local output
  if output=$("${@:2}" 2>&1 </dev/null); then
    echo "ran: ${*:2}" && exit 1
  fi
  grep -F "$1" <<<"$output" || { echo "$output" && exit 1; }
}
says 'Call KvEvictLLama.Enable() before anything' env LATE=1 "$work/built/chat" "$work/model.gguf" 1
rm "$work/built/runtimes/linux-x64/native/libkvevict-llama.so.0"
says 'libkvevict-llamasharp.so: cannot be loaded' "$work/built/chat" "$work/model.gguf" 1
