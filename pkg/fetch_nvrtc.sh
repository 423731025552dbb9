#!/usr/bin/env bash
# Prints a folder with a libnvrtc for the tests, or nothing where there is none.
# KVEVICT_NVRTC_DIR=dir names one; else it is where the system has one; else NVRTC 11.8
# is fetched as Debian 12's packages (component non-free) from the machine's own mirror
# and unpacked into the user's cache. It is not installed, and needs only the C library.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/private_apt.sh"

readonly suite=bookworm
readonly packages=(libnvrtc11.2 libnvrtc-builtins11.8)
readonly folder=$cache/nvrtc-11.8

# Where the dynamic linker or the toolkit's usual folder has one; the newest.
system_folder() {
  local libraries
  libraries=$({ ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null |
    sed -n 's,.* => \(/.*/libnvrtc\.so\.[0-9.]*\)$,\1,p'
    compgen -G '/usr/local/cuda/lib64/libnvrtc.so.*') || true
  awk -F 'libnvrtc.so.' 'NF > 1 { print $2, $1 }' <<<"$libraries" | sort -V |
    tail -n 1 | cut -d ' ' -f 2-
}

if [[ -n ${KVEVICT_NVRTC_DIR:-} ]]; then
  realpath "$KVEVICT_NVRTC_DIR"
  exit
fi
installed=$(system_folder)
if [[ -n $installed ]]; then
  realpath "$installed"
  exit
fi
if [[ -d $folder ]]; then
  echo "$folder"
  exit
fi

if [[ $(uname -m) != x86_64 ]]; then
  say "no libnvrtc here, and none to fetch for $(uname -m)"
  exit
fi
mirror_uri=$(debian_mirror)
if [[ -z $mirror_uri ]]; then
  say "no libnvrtc here, and no Debian mirror to fetch one from"
  exit
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
private_apt "$work" "deb $mirror_uri $suite non-free"

say "fetching NVRTC 11.8 from $mirror_uri $suite"
if apt-get -qq update >&2 &&
  (cd "$work" && apt-get -qq download "${packages[@]}" >&2); then
  for package in "$work"/*.deb; do
    dpkg-deb -x "$package" "$work/root"
  done
  # A rename, so that a folder which is there is a whole one.
  [[ -d $folder ]] || mv "$work"/root/usr/lib/x86_64-linux-gnu "$folder"
  echo "$folder"
else
  say "could not fetch it (network?); tests that need it are skipped"
  say "offline: KVEVICT_NVRTC_DIR=dir ./run test, or put the libraries at $folder"
fi
