#!/usr/bin/env bash
# Prints a folder with the llama-server, llama-completion, libraries and headers of
# llama.cpp 0.7.0, or nothing where there is none. KVEVICT_LLAMA_SERVER_DIR names one;
# else the packages of Debian's release forky are taken from the machine's own Debian
# mirror, pinned by their SHA-256. They come with their own C library, are unpacked into
# the user's cache as usr/..., and started through their ld-linux; nothing of them is
# installed. A mirror has a release's packages only until newer ones replace them.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/private_apt.sh"

readonly suite=forky
readonly folder=$cache/llama-server-0.7.0
# package=version SHA-256
readonly pins="
llama.cpp-tools=1:0.7.0+dfsg-2 3007c170f116891974bd37d5ba802f094c7d020412f2100cc71582fc8530895c
llama.cpp-tools-extra=1:0.7.0+dfsg-2 4598b97ab2d2222dd484aad51946f96e6c77c448b2732565cebe753be782022a
libllama0=1:0.7.0+dfsg-2 7d49cde5582ccdc8c454b379ba627eea8c95813b6a9c70628653101f629204d6
libllama-dev=1:0.7.0+dfsg-2 32ef4623590b78da21b64719d49fa69960d8175b9a59fb13dc4208db85fabbe5
libggml0=0.27.0-1 f621153d6615a8dd1ac4b14e110cbafca34cc66f551367c5f6326f71fb141b0d
libggml-dev=0.27.0-1 66c4fd0a94885fc829c1ecc9f51536f5c5c928b32ebcb30d2d79038a7714f0a5
libc6=2.43-7 5c71715c51103beb4fbba9fe9f8dff604af6610dfa71c70bff342f54a7860803
libstdc++6=16.2.0-3 7c9e1a89e6c0b9202699957b469c06d0b86f5c97e86c1ff912b6502ddd8793b6
libgcc-s1=16.2.0-3 e716dc8baad27e884c45ff83a76955047a7a9e33a80e94f9459ee996ebb800b0
libgomp1=16.2.0-3 a94884d440c641499fccc658eb6845cdc7381fe3f419ab71dff8a621614122c7
libssl3t64=3.6.5-1 0a0ec84fe860c5c93c74d53cbb071aea0793327a3761b483080e9d7b73c21b37
libzstd1=1.5.7+dfsg-4 93e7930e4c25b918f1dd980cc1c6d4487654a248f5fa71eacb976ed7bbe954bd
zlib1g=1:1.3.dfsg+really1.3.2-3 52c585b07bea72ef36df9ddd5d1937f4739d3caec057d827954baec256292651
"

# unpack MIRROR: a rename at the end makes sure that an existing folder is complete.
unpack() (
  local pin sha deb
  mkdir -p "$cache" && work=$(mktemp -d "$cache/fetch.XXXXXX") || exit 1
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/debs" "$work/new" || exit 1
  private_apt "$work/apt" "deb $1 $suite main"
  apt-get -qq update && cd "$work/debs" || exit 1
  while read -r pin sha; do
    [[ -n $pin ]] || continue
    apt-get -qq download "$pin" || exit 1
    deb=$(echo "${pin%%=*}"_*.deb)
    sha256sum --quiet --strict -c <<<"$sha  $deb" && dpkg-deb -x "$deb" ../new || exit 1
  done <<<"$pins"
  rm -rf ../new/usr/share/{man,locale}
  [[ -d $folder ]] || mv ../new "$folder"
)

if [[ -n ${KVEVICT_LLAMA_SERVER_DIR:-} ]]; then
  realpath "$KVEVICT_LLAMA_SERVER_DIR"
elif [[ -d $folder ]]; then
  echo "$folder"
elif [[ $(uname -sm) != "Linux x86_64" ]]; then
  say "no llama-server to fetch for $(uname -sm): its tests are left out"
else
  mirror_uri=$(debian_mirror) || mirror_uri=
  if [[ -z $mirror_uri ]]; then
    say "no Debian mirror configured to fetch llama-server from: its tests are left out"
  elif say "fetching llama-server 0.7.0 from $mirror_uri $suite" && unpack "$mirror_uri" >&2; then
    echo "$folder"
  else
    say "could not fetch llama-server: its tests are left out; offline: put it at $folder"
  fi
fi
