#!/usr/bin/env bash
# packages.sh BUILD RUNNER...: another machine's package, unpacked anywhere, serves
# programs in C and Go that are compiled for that machine, by CMake and by
# pkg-config. RUNNER (wine, qemu-aarch64 ...) runs them.
set -euo pipefail
source=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
build=$(realpath "$1")
shift
runner=("$@")
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
work=$(mktemp -d)
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT
cd "$work"

if [[ -e $build/kvevict.dll ]]; then
  system=Windows architecture=amd64 libdir=lib suffix=.exe
  compiler=x86_64-w64-mingw32-gcc-posix
  "$source/pkg/package.sh" zip "$build" dist windows-x86_64 >/dev/null
  cmake -E tar xf dist/*.zip
  prefix=$work/$(basename dist/*.zip .zip)
  for file in bin/kvevict.{dll,exe} lib/{libkvevict.a,libkvevict.dll.a,kvevict.lib} \
    include/kvevict/{all,kvevict}.h lib/cmake/kvevict/kvevict-config.cmake \
    lib/pkgconfig/kvevict.pc share/doc/kvevict/copyright; do
    [[ -s $prefix/$file ]] || { echo "the zip has no $file" && exit 1; }
  done
  export WINEPATH=Z:${prefix//\//\\}\\bin
else
  system=Linux architecture=arm64 libdir=lib/aarch64-linux-gnu suffix=
  compiler=aarch64-linux-gnu-gcc
  packages=$("$source/pkg/package.sh" deb "$build" dist)
  for package in $packages; do
    [[ $(dpkg-deb -f "$package" Architecture) == arm64 ]] ||
      { echo "$package is not for arm64" && exit 1; }
    echo "${package##*/}: $(dpkg-deb -f "$package" Depends)"
    dpkg-deb -x "$package" root
  done
  prefix=$work/root/usr
  # A .deb's own prefix is /usr.
  sed -i "s|^prefix=.*|prefix=$prefix|" "$prefix/$libdir/pkgconfig/kvevict.pc"
  export QEMU_SET_ENV=LD_LIBRARY_PATH=$prefix/$libdir
fi
says() { # prints the version it has found
  local printed
  printed=$("${runner[@]}" "$@" 2>/dev/null | tr -d '\r')
  [[ $printed == *"$version"* ]] || { echo "$1 prints: $printed" && exit 1; }
  echo "${1#"$work/"}: $printed"
}

# ---- CMake, C ----------------------------------------------------------------------
for target in kvevict static; do
  options=()
  [[ $target$system != staticWindows ]] || options=(-DCMAKE_EXE_LINKER_FLAGS=-static)
  cmake -S "$source/tests/install/consumer" -B "$target" -G Ninja "${options[@]}" \
    -DCMAKE_SYSTEM_NAME=$system -DCMAKE_C_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Release \
    -Dkvevict_DIR="$prefix/$libdir/cmake/kvevict" -DKVEVICT_TARGET=kvevict::$target >log &&
    cmake --build "$target" >>log || { tail -n 30 log && exit 1; }
  says "$target/consumer$suffix"
done
says "$prefix/bin/kvevict$suffix" --version

# ---- pkg-config, Go ----------------------------------------------------------------
command -v go >/dev/null || { echo "skipped: no go here" && exit 0; }
mkdir app
cp "$source/bindings/go/tests/consumer/main.go" app
cd app
export PKG_CONFIG_LIBDIR=$prefix/$libdir/pkgconfig GOCACHE=$work/go-cache GOPROXY=off \
  GOMODCACHE=$work/modules GOTOOLCHAIN=local GOFLAGS=-modcacherw
go mod init consumer 2>/dev/null
grep '^replace ' "$source/bindings/go/README.md" |
  sed "s|/path/to/kvevict/bindings/go|$source/bindings/go|" >>go.mod
go get kvevict.dev/kvevict/bindings/go
export CGO_ENABLED=1 CC=$compiler GOOS=${system,,} GOARCH=$architecture
go build -o "shared$suffix" .
"${runner[@]}" "./shared$suffix"
go build -tags kvevict_static -o "archive$suffix" .
env -u WINEPATH -u QEMU_SET_ENV "${runner[@]}" "./archive$suffix"
