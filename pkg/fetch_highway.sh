#!/usr/bin/env bash
# Prints the folder of a Highway 1.2 source tree, or nothing if CMake has to find or
# download one itself. KVEVICT_HIGHWAY_SOURCE=dir names one. Debian 12 has Highway
# 1.0, so the source package of the next release is fetched from the machine's own
# Debian mirror.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/private_apt.sh"

readonly suite=trixie
readonly tree=$cache/highway-1.2

if [[ -n ${KVEVICT_HIGHWAY_SOURCE:-} ]]; then
  realpath "$KVEVICT_HIGHWAY_SOURCE"
  exit
fi
if [[ -f $tree/CMakeLists.txt ]]; then
  echo "$tree"
  exit
fi

mirror_uri=$(debian_mirror)
if [[ -z $mirror_uri ]]; then
  say "no Debian mirror configured; Highway is left to CMake"
  exit
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/tree"
private_apt "$work" "deb-src $mirror_uri $suite main"

say "fetching Highway's source from $mirror_uri $suite"
if apt-get -qq update >&2 &&
  (cd "$work" && apt-get -qq source --download-only highway >&2) &&
  tar -C "$work/tree" --strip-components=1 -xf "$work"/highway_*.orig.tar.*; then
  # A rename at the end makes sure that an existing tree is complete.
  [[ -d $tree ]] || mv "$work/tree" "$tree"
  echo "$tree"
else
  say "could not fetch it (network? keyring older than $suite?); left to CMake"
  say "offline: KVEVICT_HIGHWAY_SOURCE=dir ./run ..., or put a 1.2 tree at $tree"
fi
