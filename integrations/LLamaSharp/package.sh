#!/usr/bin/env bash
# package.sh OUT: packs KvEvict.LLamaSharp.VERSION.nupkg and .snupkg into OUT. Run by CMake,
# which sets KvEvictBuild.
set -euo pipefail
out=$1
cd "$(dirname "${BASH_SOURCE[0]}")"
export KvEvictPackage=true
artifacts=$KvEvictBuild/../../integrations/LLamaSharp/package
if ! dotnet restore -v quiet --artifacts-path "$artifacts" KvEvict.LLamaSharp; then
  echo "skipped: LLamaSharp 0.30.0 cannot be restored"
  exit 77
fi
mkdir -p "$out"
rm -f "$out"/KvEvict.LLamaSharp.*
dotnet pack -c Release -v quiet --no-restore --artifacts-path "$artifacts" -o "$out" KvEvict.LLamaSharp

# What must lie in it.
package=$(echo "$out"/KvEvict.LLamaSharp.*.nupkg)
names=$(cmake -E tar tf "$package")
native=runtimes/linux-x64/native
for name in README.md docs/policies.md docs/parameters.md LICENSE NOTICE icon.png lib/net10.0/KvEvict.LLamaSharp.dll lib/net10.0/KvEvict.LLamaSharp.xml \
  $native/libkvevict.so.0 $native/libkvevict-llama.so.0 $native/libkvevict-llamasharp.so; do
  grep -qxF "$name" <<<"$names" || { echo "$package has no $name:" && echo "$names" && exit 1; }
done
ls "$package" "${package%.nupkg}.snupkg"
