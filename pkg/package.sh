#!/usr/bin/env bash
# package.sh deb|tarball|zip BUILD DIST [PLATFORM]: packages what is built in BUILD, for
# this machine or PLATFORM, into DIST. The same sources and tools give the same bytes,
# dated by the last commit or SOURCE_DATE_EPOCH.
set -euo pipefail
kind=$1 build=$(realpath "$2") platform=${4:-linux-$(uname -m)}
mkdir -p "$3"
dist=$(realpath "$3")
source=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")

# Without git the date is the changelog's.
: "${SOURCE_DATE_EPOCH:=$(git -C "$source" log -1 --format=%ct 2>/dev/null ||
  stat -c %Y "$source/CHANGELOG.md")}"
export SOURCE_DATE_EPOCH
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

case $kind in
  deb)
    (cd "$work" && cpack --config "$build/CPackConfig.cmake" -G DEB -B "$work") \
      >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }
    packages=("$work"/*.deb)
    ;;
  tarball)
    name=kvevict-$version-$platform
    cmake --install "$build" --prefix "$work/$name" --strip >/dev/null
    tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner \
      --mtime="@$SOURCE_DATE_EPOCH" -c "$name" | gzip -9n >"$work/$name.tar.gz"
    packages=("$work/$name.tar.gz")
    ;;
  zip)
    name=kvevict-$version-$platform
    cmake --install "$build" --prefix "$work/$name" --strip >/dev/null
    (cd "$work" && find "$name" -type f | LC_ALL=C sort >list &&
      TZ=UTC cmake -E tar cf "$name.zip" --format=zip \
        --mtime="$(date -u -d "@$SOURCE_DATE_EPOCH" '+%Y-%m-%d %H:%M:%S UTC')" \
        --files-from=list)
    packages=("$work/$name.zip")
    ;;
  *) echo "package.sh: no such package: $kind" >&2 && exit 1 ;;
esac
for package in "${packages[@]}"; do
  cp "$package" "$dist"
  echo "$dist/${package##*/}"
done
