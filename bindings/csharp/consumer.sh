#!/usr/bin/env bash
# consumer.sh FEED MAJOR plain|aot: the README's program in a project outside the tree
# that has the package from FEED and nothing else of ours.
#   plain  run for net8.0 and for the SDK's own framework; without the native library
#          the error lists the paths tried
#   aot    published with NativeAOT, no warning, and run
set -euo pipefail
feed=$1 newest=net$2.0 way=$3
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The user's own cache might have a stale package of the same version.
export NUGET_PACKAGES=$KvEvictBuild/consumer-packages
rm -rf "$NUGET_PACKAGES/kvevict"
unset KvEvictBuild
cp "$here"/consumer/* "$work"
awk '/^```csharp$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$here/README.md" \
  >"$work/Program.cs"
[[ -s $work/Program.cs ]]
cd "$work"
# Adds our feed as the README says, with or without the user's own sources.
add_source=$(grep '^dotnet nuget add source ' "$here/README.md")
sources() { # sources [clear]
  printf '<configuration><packageSources>%s</packageSources></configuration>\n' \
    "${1:+<clear />}" >nuget.config
  ${add_source/\/path\/to\/dist/$feed} --configfile "$work/nuget.config"
}

# restore FRAMEWORK [options]: false if the framework's packs cannot be had.
restore() {
  local framework=$1
  shift
  dotnet restore -v quiet -p:TargetFramework="$framework" "$@" >restore.log 2>&1
}

expect() { # expect OUTPUT: what the README's program prints
  grep -qxF 'available: True, parsed: True' <<<"$1"
  grep -E '^[0-9]+ -> [0-9]+ bytes; the next token goes to slot 512 with RoPE position 4096$' <<<"$1"
}

# Every path that is tried without a library is named, and so is the variable.
expect_paths() { # expect_paths COMMAND...
  local output
  if output=$("$@" 2>&1); then
    echo "ran without a native library" && exit 1
  fi
  for text in 'available: False, parsed: False' DllNotFoundException "$work" runtimes/ \
    libkvevict_csharp.so KVEVICT_LIBRARY 'its package has those for linux-'; do
    grep -qF "$text" <<<"$output" || { echo "the error does not name $text: $output" && exit 1; }
  done
  if output=$(KVEVICT_LIBRARY=/nowhere/lib.so "$@" 2>&1); then
    echo "KVEVICT_LIBRARY was not read" && exit 1
  fi
  grep -F '/nowhere/lib.so: no such file' <<<"$output"
}

plain() { # plain FRAMEWORK
  dotnet build --no-restore -c Release -v quiet -p:TargetFramework="$1" -o "out-$1"
  echo "$1: $(expect "$("out-$1/consumer")")"
}

case $way in
  plain)
    sources clear # nothing else is needed, so it works without a network
    restore "$newest" || { cat restore.log && exit 1; }
    plain "$newest"
    find "out-$newest" -name 'libkvevict_csharp.so' -exec mv {} library.so \;
    expect_paths "out-$newest/consumer"
    [[ -n $(KVEVICT_LIBRARY=library.so "out-$newest/consumer") ]]
    if [[ $newest != net8.0 ]]; then
      sources
      if restore net8.0; then
        plain net8.0
      else
        echo "net8.0 not tried: its packs cannot be restored"
      fi
    fi
    ;;
  aot)
    sources
    tried=0
    for framework in net8.0 "$newest"; do
      if ! restore "$framework" -r "linux-$(uname -m | sed 's/x86_64/x64/;s/aarch64/arm64/')" \
        -p:PublishAot=true; then
        echo "$framework not tried with NativeAOT: $(grep -o 'error.*' restore.log | head -n 1)"
        continue
      fi
      tried=1
      dotnet publish --no-restore -c Release -v quiet --use-current-runtime \
        -p:TargetFramework="$framework" -p:PublishAot=true -o "aot-$framework"
      echo "$framework NativeAOT: $(expect "$("aot-$framework/consumer")")"
      [[ ! -e aot-$framework/consumer.dll ]]
    done
    [[ $tried == 1 ]] || { echo "skipped: no NativeAOT compiler can be restored" && exit 77; }
    ;;
esac
