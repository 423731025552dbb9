#!/usr/bin/env bash
# Prints the folders with a libnvrtc for the tests, separated by colons, or nothing
# where there is none. KVEVICT_NVRTC_DIR=dir[:dir ...] names them; else it is where the
# system has one; else NVRTC 12.4 and 11.8 are fetched as Debian's packages (component
# non-free) from the machine's own mirror and unpacked into the user's cache. They are
# not installed, and need only the C library. Either serves without the other.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/private_apt.sh"

# version:Debian's release:packages
readonly versions=(
  12.4:trixie:"libnvrtc12 libnvrtc-builtins12.4"
  11.8:bookworm:"libnvrtc11.2 libnvrtc-builtins11.8")

# The newest one in the dynamic linker's or the toolkit's usual folder.
system_folder() {
  local libraries
  libraries=$({ ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null |
    sed -n 's,.* => \(/.*/libnvrtc\.so\.[0-9.]*\)$,\1,p'
    compgen -G '/usr/local/cuda/lib64/libnvrtc.so.*') || true
  awk -F 'libnvrtc.so.' 'NF > 1 { print $2, $1 }' <<<"$libraries" | sort -V |
    tail -n 1 | cut -d ' ' -f 2-
}

# fetch VERSION RELEASE FOLDER PACKAGE...: a subshell keeps apt's settings. Callers
# that test for success switch errexit off.
fetch() (
  version=$1 release=$2 folder=$3
  shift 3
  mirror_uri=$(debian_mirror)
  if [[ $(uname -m) != x86_64 ]]; then
    say "no NVRTC $version to fetch for $(uname -m)"
    exit 1
  fi
  if [[ -z $mirror_uri ]]; then
    say "no Debian mirror to fetch NVRTC $version from"
    exit 1
  fi
  mkdir -p "$cache" && work=$(mktemp -d "$cache/fetch.XXXXXX") || exit 1
  trap 'rm -rf "$work"' EXIT
  private_apt "$work" "deb $mirror_uri $release non-free"
  say "fetching NVRTC $version from $mirror_uri $release"
  if ! { apt-get -qq update && cd "$work" && apt-get -qq download "$@"; } >&2; then
    say "could not fetch it (network? keyring older than $release?)"
    exit 1
  fi
  for package in *.deb; do
    dpkg-deb -x "$package" root || exit 1
  done
  # A rename at the end makes sure that an existing folder is complete.
  [[ -d $folder ]] || mv root/usr/lib/x86_64-linux-gnu "$folder"
)

if [[ -n ${KVEVICT_NVRTC_DIR:-} ]]; then
  tr : '\n' <<<"$KVEVICT_NVRTC_DIR" | xargs -r -d '\n' realpath | paste -sd :
  exit
fi
installed=$(system_folder)
if [[ -n $installed ]]; then
  realpath "$installed"
  exit
fi

folders=()
for row in "${versions[@]}"; do
  IFS=: read -r version release packages <<<"$row"
  folder=$cache/nvrtc-$version
  # shellcheck disable=SC2086 # a list of words
  if [[ -d $folder ]] || fetch "$version" "$release" "$folder" $packages; then
    folders+=("$folder")
  else
    say "the tests go without NVRTC $version; offline: put it at $folder"
  fi
done
if [[ ${#folders[@]} == 0 ]]; then
  say "no libnvrtc: name one, KVEVICT_NVRTC_DIR=dir ./run test"
  exit
fi
(
  IFS=:
  echo "${folders[*]}"
)
