#!/usr/bin/env bash
# package.sh OUT: packs KvEvict.VERSION.nupkg and .snupkg into OUT, for net8.0 too, and
# analyzed for trimming and AOT, where NuGet has what that needs. Run by CMake, which
# sets KvEvictBuild.
set -euo pipefail
out=$1
cd "$(dirname "${BASH_SOURCE[0]}")"
newest=$(sed -n 's:.*<KvEvictNewest>\(.*\)</KvEvictNewest>.*:\1:p' "$KvEvictBuild/kvevict.props")

# The usual build has one framework, so this has a folder of its own.
pack=(-c Release -v quiet --artifacts-path "$KvEvictBuild/package")
export KvEvictFrameworks=net8.0 KvEvictAnalyze=true KvEvictPackage=true
KvEvictCommit=$(git rev-parse HEAD 2>/dev/null || true)
export KvEvictCommit
[[ $newest == net8.0 ]] || KvEvictFrameworks+=";$newest"
if ! dotnet restore -v quiet --artifacts-path "$KvEvictBuild/package" KvEvict; then
  echo "only $newest and without AOT analysis: the packs for more cannot be restored"
  export KvEvictFrameworks=$newest KvEvictAnalyze=false
fi
mkdir -p "$out"
rm -f "$out"/KvEvict.[0-9]*.nupkg "$out"/KvEvict.[0-9]*.snupkg
dotnet pack "${pack[@]}" -o "$out" KvEvict

# What must lie in it.
package=$(echo "$out"/KvEvict.[0-9]*.nupkg)
names=$(cmake -E tar tf "$package")
runtimes=$(sed -n 's:.*<KvEvictRuntimes>\(.*\)</KvEvictRuntimes>.*:\1:p' "$KvEvictBuild/kvevict.props")
expected=(README.md docs/policies.md docs/policies/budgets.md LICENSE NOTICE icon.png buildTransitive/KvEvict.targets)
for runtime in $runtimes; do
  case $runtime in
    win-*) expected+=("runtimes/$runtime/native/kvevict_csharp.dll") ;;
    *) expected+=("runtimes/$runtime/native/libkvevict_csharp.so") ;;
  esac
done
for framework in ${KvEvictFrameworks//;/ }; do
  expected+=("lib/$framework/KvEvict.dll" "lib/$framework/KvEvict.xml")
done
for name in "${expected[@]}"; do
  grep -qxF "$name" <<<"$names" || { echo "$package has no $name:" && echo "$names" && exit 1; }
done
(cd "$KvEvictBuild" && rm -rf unpacked && mkdir unpacked && cd unpacked && cmake -E tar xf "$package" README.md)
for policy in none snapkv custom; do
  grep -q "^| \`$policy\` |" "$KvEvictBuild/unpacked/README.md" ||
    { echo "the package's README has no policy $policy" && exit 1; }
done
ls "$package" "$out"/KvEvict.[0-9]*.snupkg
echo "for ${KvEvictFrameworks//;/, } on $runtimes"
