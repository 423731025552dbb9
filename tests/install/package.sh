#!/usr/bin/env bash
# package.sh deb|tarball|lintian BUILD VERSION LIBDIR: makes the packages, unpacks
# them into a folder, and lets every program outside the tree use them; or shows the
# .deb to lintian.
set -euo pipefail
kind=$1 build=$2 version=$3 libdir=$4
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
source=$(realpath "$here/../..")
skip() {
  echo "skipped: $*"
  exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

format=${kind/lintian/deb}
tools=()
[[ $format != deb ]] || tools=(dpkg-deb dpkg-shlibdeps)
[[ $kind != lintian ]] || tools+=(lintian)
for tool in "${tools[@]}"; do
  [[ -f $build/CPackConfig.cmake ]] || skip "not a Debian-like system"
  command -v "$tool" >/dev/null || skip "no $tool here"
done
made=$("$source/pkg/package.sh" "$format" "$build" "$work/dist")
mapfile -t packages <<<"$made"
if [[ $kind == lintian ]]; then
  options=()
  [[ $(id -u) != 0 ]] || options+=(--allow-root)
  TMPDIR=$work lintian "${options[@]}" --fail-on error "${packages[@]}"
  exit
fi
mkdir "$work/root"
compiler_path=()
if [[ $kind == deb ]]; then
  [[ ${#packages[@]} -ge 2 ]]
  for package in "${packages[@]}"; do
    dpkg-deb -x "$package" "$work/root"
  done
  prefix=$work/root/usr documented=libkvevict-dev
  # Once installed, the dynamic linker and the compiler find it without help:
  # pkg-config names no folder.
  library_path=$prefix/$libdir
  for option in '' --static; do
    flags=$(PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig \
      pkg-config $option --cflags --libs kvevict)
    echo "pkg-config $option: $flags"
    [[ $flags != *-[IL]* && $flags == *-lkvevict* ]]
  done
  compiler_path=(CPATH="$prefix/include" LIBRARY_PATH="$prefix/$libdir")
else
  [[ ${#packages[@]} == 1 ]]
  tar -C "$work/root" -xf "${packages[0]}"
  prefix=$work/root/$(basename "${packages[0]}" .tar.gz) documented=kvevict
  library_path=
fi

"$here/documentation.sh" "$prefix" "$libdir" "$documented"
env "${compiler_path[@]}" "$here/pkgconfig.sh" "$prefix" "$libdir" static "$here/consumer/main.c"
"$here/cmake.sh" "$prefix" "$libdir" shared "$here/consumer"
if [[ -x $prefix/bin/kvevict ]]; then
  "$here/program.sh" "$prefix" "$libdir" "$version" "$library_path"
  LD_LIBRARY_PATH=$library_path "$here/pages.sh" "$prefix"
fi
