#!/usr/bin/env bash
# Prints a folder with llama.cpp's public headers (include/) and its libraries for the
# CPU (lib/), or nothing where there is none. KVEVICT_LLAMA_DIR names one of any layout
# that integrations/llama.cpp/find_llama.cmake finds; else release 0.5.0 is taken from two
# packages of npm's registry, pinned by their SHA-256: libraries from
# @node-llama-cpp/linux-x64, headers from the git bundle in node-llama-cpp. They are
# unpacked into the user's cache, nothing of them is run or installed.
set -euo pipefail

readonly cache=${XDG_CACHE_HOME:-${HOME:-$PWD/build}/.cache}/kvevict
readonly version=3.22.1
readonly folder=$cache/llama-0.5.0
# package:SHA-256 of its tarball
readonly libraries=@node-llama-cpp/linux-x64:0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0
readonly sources=node-llama-cpp:a0d9dd80eacd2ab1cfe71aee57ac8a806487fd70b3d2a38fbec637752d9e5c5f

say() { printf '== %s\n' "$*" >&2; }

# tarball PACKAGE:SHA FILE
tarball() {
  local package=${1%:*} sha=${1##*:}
  mkdir -p packed
  (cd packed && npm pack --silent --ignore-scripts "$package@$version") >/dev/null &&
    mv packed/*.tgz "$2" && sha256sum --quiet --strict -c <<<"$sha  $2"
}

fetch() (
  mkdir -p "$cache" && work=$(mktemp -d "$cache/fetch.XXXXXX") || exit 1
  trap 'rm -rf "$work"' EXIT
  cd "$work" || exit 1
  say "fetching llama.cpp 0.5.0 from npm"
  tarball "$libraries" libraries.tgz && tarball "$sources" sources.tgz || exit 1
  mkdir -p new/lib libraries sources || exit 1
  tar -xzf libraries.tgz -C libraries package/bins/linux-x64 package/LICENSE &&
    mv libraries/package/bins/linux-x64/lib{ggml,llama.}*.so new/lib &&
    mv libraries/package/LICENSE new/LICENSE.node-llama-cpp &&
    tar -xzf sources.tgz -C sources package/llama/gitRelease.bundle &&
    git clone -q --bare sources/package/llama/gitRelease.bundle git 2>/dev/null &&
    git --git-dir=git archive HEAD LICENSE include ggml/include | tar -x -C new &&
    mv new/ggml/include/* new/include && rm -r new/ggml || exit 1
  # A rename at the end makes sure that an existing folder is complete.
  [[ -d $folder ]] || mv new "$folder"
)

if [[ -n ${KVEVICT_LLAMA_DIR:-} ]]; then
  realpath "$KVEVICT_LLAMA_DIR"
elif [[ -d $folder ]]; then
  echo "$folder"
elif [[ $(uname -sm) != "Linux x86_64" ]]; then
  say "no llama.cpp to fetch for $(uname -sm): the adapter is left out"
elif ! command -v npm >/dev/null || ! command -v git >/dev/null; then
  say "no npm and git to fetch llama.cpp with: the adapter is left out"
elif fetch >&2; then
  echo "$folder"
else
  say "could not fetch llama.cpp: the adapter is left out; offline: put it at $folder"
fi
