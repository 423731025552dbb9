#!/usr/bin/env bash
# Prints the folder of a Highway 1.2 source tree, or nothing where CMake has to find
# or download one itself. KVEVICT_HIGHWAY_SOURCE=dir names one. Debian 12 has Highway 1.0, so the source package of the next
# release is fetched from the machine's own Debian mirror, its signature checked, with
# lists, state and cache of our own: apt's setup and the installed packages stay as
# they are.
set -euo pipefail

readonly suite=trixie
readonly cache=${XDG_CACHE_HOME:-${HOME:-$PWD/build}/.cache}/kvevict
readonly tree=$cache/highway-1.2
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg

say() { printf '== %s\n' "$*" >&2; }

if [[ -n ${KVEVICT_HIGHWAY_SOURCE:-} ]]; then
  realpath "$KVEVICT_HIGHWAY_SOURCE"
  exit
fi
if [[ -f $tree/CMakeLists.txt ]]; then
  echo "$tree"
  exit
fi

# The mirror of the running release, if this is Debian.
mirror() {
  local VERSION_CODENAME=none
  [[ ! -r /etc/os-release ]] || . /etc/os-release
  [[ ${ID:-} == debian ]] || return 0
  apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Identifier: Packages' \
    2>/dev/null | awk -v codename="$VERSION_CODENAME" \
    '$1 == codename || $1 ~ /^(old)?stable$/ { print $2; exit }'
}

mirror_uri=$(mirror)
if [[ -z $mirror_uri ]]; then
  say "no Debian mirror configured; Highway is left to CMake"
  exit
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{state/lists/partial,cache/archives/partial,tree}
echo "deb-src [signed-by=$keyring] $mirror_uri $suite main" >"$work/sources.list"
# Proxies and the like (Acquire::*) are the machine's; everything else, its hooks
# above all, is not read.
{
  apt-config dump | grep '^Acquire::' || true
  cat <<CONF
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "$work/state";
Dir::State::status "$work/state/status";
Dir::Cache "$work/cache";
Acquire::Languages "none";
APT::Sandbox::User "$(id -un)";
CONF
} >"$work/apt.conf"
touch "$work/state/status"
export APT_CONFIG=$work/apt.conf

say "fetching Highway's source from $mirror_uri $suite"
if apt-get -qq update >&2 &&
  (cd "$work" && apt-get -qq source --download-only highway >&2) &&
  tar -C "$work/tree" --strip-components=1 -xf "$work"/highway_*.orig.tar.*; then
  # A rename, so that a tree which is there is a whole one.
  [[ -d $tree ]] || mv "$work/tree" "$tree"
  echo "$tree"
else
  say "could not fetch it (network? keyring older than $suite?); left to CMake"
  say "offline: KVEVICT_HIGHWAY_SOURCE=dir ./run ..., or put a 1.2 tree at $tree"
fi
