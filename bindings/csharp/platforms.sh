#!/usr/bin/env bash
# platforms.sh MAJOR: a package for three platforms, with stand-ins for the native
# libraries that are not built here. A program published for one of them gets that one's,
# a portable program all; the build for another platform warns.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# ---- The package: what has been built, and more native libraries -----------------
mkdir "$work/build" "$work/feed"
cp "$KvEvictBuild"/{kvevict.props,KvEvict.targets,NativePlatform.cs,README.md} "$work/build"
props=$work/build/kvevict.props
for native in linux-x64/libkvevict_csharp.so linux-arm64/libkvevict_csharp.so \
  win-x64/kvevict_csharp.dll; do
  runtime=${native%/*}
  if ! grep -q "Runtime=\"$runtime\"" "$props"; then
    mkdir "$work/$runtime"
    echo "for $runtime" >"$work/$native"
    sed -i "s|</ItemGroup>|<KvEvictNative Include=\"$work/$native\" Runtime=\"$runtime\" />&|" \
      "$props"
  fi
done
newest=net$1.0
KvEvictBuild=$work/build KvEvictFrameworks=$newest dotnet pack --no-build -c Release -v quiet \
  --artifacts-path "$KvEvictBuild/artifacts" -o "$work/feed" "$here/KvEvict"

# ---- Programs ----------------------------------------------------------------------
# The user's own cache might have a stale package of the same version.
export NUGET_PACKAGES=$work/packages
unset KvEvictBuild
mkdir "$work/programs"
cd "$work/programs"
printf '<configuration><packageSources><clear /><add key="local" value="%s" />%s\n' \
  "$work/feed" '</packageSources></configuration>' >nuget.config
published=(linux-arm64 win-x64 osx-arm64 linux-musl-x64 any)
for runtime in "${published[@]}"; do
  mkdir "$runtime"
  echo 'return;' >"$runtime/Program.cs"
  sed "s|<TargetFramework>.*|<TargetFramework>$newest</TargetFramework>\
    <RuntimeIdentifier>${runtime#any}</RuntimeIdentifier>\
    <SelfContained>false</SelfContained>\
    <UseAppHost>false</UseAppHost>\
    <PublishDir>$work/$runtime.out/</PublishDir>\
    <MSBuildTreatWarningsAsErrors>false</MSBuildTreatWarningsAsErrors>|" \
    "$here/consumer/consumer.csproj" >"$runtime/consumer.csproj"
done
# One process builds them all.
cat >all.proj <<'XML'
<Project>
  <ItemGroup><Program Include="*/consumer.csproj" /></ItemGroup>
  <Target Name="All">
    <MSBuild Projects="@(Program)" Targets="Restore" Properties="Restoring=true" />
    <MSBuild Projects="@(Program)" Targets="Publish" Properties="Configuration=Release" />
  </Target>
</Project>
XML
dotnet msbuild -nologo -v:quiet all.proj >log 2>&1 || { cat log && exit 1; }

for runtime in "${published[@]}"; do
  found=$(cd "$work/$runtime.out" && find . -name '*kvevict_csharp*' | LC_ALL=C sort | paste -sd ' ')
  ! grep -q "KVEVICT001: .*and none for $runtime:" log || found+="${found:+, }a warning"
  echo "$runtime: ${found:-nothing}"
done >found
cat found
diff found - <<'TXT'
linux-arm64: ./libkvevict_csharp.so
win-x64: ./kvevict_csharp.dll
osx-arm64: a warning
linux-musl-x64: ./libkvevict_csharp.so, a warning
any: ./runtimes/linux-arm64/native/libkvevict_csharp.so ./runtimes/linux-x64/native/libkvevict_csharp.so ./runtimes/win-x64/native/kvevict_csharp.dll
TXT
for runtime in linux-arm64 win-x64; do
  native=$(cd "$work/any.out" && find "runtimes/$runtime" -type f)
  cmp "$work/any.out/$native" "$work/$runtime.out/${native##*/}"
done
