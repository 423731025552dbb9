#!/usr/bin/env bash
# canary_llama.sh BUILD MODEL TEXT: with the library in BUILD, builds the adapter against
# the newest llama.cpp that Debian has, and evicts with it, in place and into a smaller
# context, and several sequences in a unified cache by its newest calls. Its packages come
# with their own C library; they are unpacked beside the machine's and started through
# their ld-linux. Nothing here fails a check: it tells what has changed upstream.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/private_apt.sh"

readonly release=forky
readonly packages=(libllama0 libllama-dev libggml0 libggml-dev libc6 libstdc++6 libgcc-s1
  libgomp1 libssl3t64 libzstd1 zlib1g)
readonly build=$1 model=$2 text=$3
folder=$PWD/build/canary-llama

skip() {
  say "llama canary: skipped: $1"
  exit 0
}

[[ $(uname -m) == x86_64 ]] || skip "no x86-64"
[[ -r $model && -r $text ]] || skip "no $model and $text"
mirror_uri=$(debian_mirror)
[[ -n $mirror_uri ]] || skip "no Debian mirror"
rm -rf "$folder" && mkdir -p "$folder/apt" "$folder/debs"
private_apt "$folder/apt" "deb $mirror_uri $release main"
apt-get -qq update >&2 || skip "no lists of $release"
(cd "$folder/debs" && apt-get -qq download "${packages[@]}") >&2 ||
  skip "not all of it can be had: ${packages[*]}"
for deb in "$folder"/debs/*.deb; do dpkg-deb -x "$deb" "$folder/root"; done
# Only llama.cpp's headers are taken: the compiler's C library is the machine's.
mkdir "$folder/include"
find "$folder/root/usr/include" -name '*.h' | grep -E '/(llama|ggml|gguf)[^/]*\.h$' |
  xargs cp -t "$folder/include"
readonly libraries=$folder/root/usr/lib/x86_64-linux-gnu
unset APT_CONFIG

say "llama canary: $(cd "$folder/debs" && echo libllama0_*)"
# compile FILE SOURCES...: their C library is newer than the one that is linked here.
compile() {
  c++ -std=c++20 -O1 -DFMT_HEADER_ONLY -I. -Icapi/include -Iintegrations/llama.cpp/include \
    -Iintegrations/llama.cpp/cli -isystem "$folder/include" "${@:2}" -o "$folder/$1" \
    -L"$build" -lkvevict -Wl,--allow-shlib-undefined \
    "$libraries"/libllama.so "$libraries"/libggml.so "$libraries"/libggml-base.so ||
    { say "llama canary: does not build" && exit 1; }
}
readonly adapter=$folder/adapter.so
compile "${adapter##*/}" -fPIC -shared integrations/llama.cpp/*.cc
compile program integrations/llama.cpp/cli/*.cc integrations/llama.cpp/cli/eval/*.cc "$adapter" \
  "$build"/tools/{libkvevict_pictures.a,llama/libkvevict_llama.a,libkvevict_engine.a} "$build"/highway/libhwy.a
compile several integrations/llama.cpp/cli/{platform_posix,upstream}.cc \
  tests/llama_cpp/canary.cc "$adapter"

backends=$(dirname "$(find "$libraries" -name 'libggml-cpu*.so' | head -n 1)")
start() {
  "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries:$build" "$folder/$1" "${@:2}"
}
run() {
  start program -m "$model" -f "$text" --backends "$backends" \
    --tokens 400 --predict 24 --generate 0 "$@"
}
for kind in "f16" "q8_0" "f32 --no-flash"; do
  for way in "" --in-place; do
    say "llama canary: $kind $way"
    # shellcheck disable=SC2086 # lists of words
    run --cache-type $kind $way || { say "llama canary: FAILED" && exit 1; }
  done
done
say "llama canary: four sequences in a unified cache"
start several "$model" "$backends" || { say "llama canary: FAILED" && exit 1; }
say "llama canary: sings"
