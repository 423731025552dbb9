#!/usr/bin/env bash
# floors.sh glibc FILE... | floors.sh managed FILE... | floors.sh cpu FILE...: the oldest
# system and the oldest CPU on which our files run. FILE is a library or program; for
# managed, a managed package's, which carries its C++ runtime; for cpu, not a stripped one.
set -euo pipefail

# Debian 12, Ubuntu 22.04 and later have these.
readonly glibc_floor=2.34 libstdcxx_floor=3.4.30
readonly managed_glibc_floor=2.35 # for libgcc's unwinder
readonly build_glibc=2.36 # packages are built on Debian 12

# The newest version NAME_x.y that FILE needs.
newest() { objdump -T "$2" | grep -o "\b$1_[0-9.]*" | sort -Vu | tail -n 1; }

check_glibc() { check_versions "GLIBC_$glibc_floor GLIBCXX_$libstdcxx_floor" "$@"; }
check_managed() { check_versions "GLIBC_$managed_glibc_floor" "$@"; }

check_versions() {
  local floors=$1 file floor needed host
  for file in "${@:2}"; do
    for floor in $floors; do
      needed=$(newest "${floor%_*}" "$file")
      echo "${file##*/}: ${needed:-no ${floor%_*}}, at most $floor"
      [[ -n $needed ]] || return 1
      [[ $(printf '%s\n' "$needed" "$floor" | sort -V | tail -n 1) == "$floor" ]] &&
        continue
      host=$(getconf GNU_LIBC_VERSION)
      # A newer toolchain's output says nothing about the packages.
      if [[ $(printf '%s\n' "${host#* }" "$build_glibc" | sort -V | head -n 1) == \
        "${host#* }" ]]; then
        return 1
      fi
      echo "skipped: $host here; packages are built with glibc $build_glibc"
      return 77
    done
  done
}

# Baseline x86-64 ends with SSE2. Everything newer may only lie in the namespaces of
# Highway's targets, which are chosen at run time.
check_cpu() {
  local file
  if [[ $(uname -m) != x86_64 ]]; then
    echo "skipped: the CPU floor is x86-64's, this is $(uname -m)"
    return 77
  fi
  for file in "$@"; do
    objdump -d --no-show-raw-insn "$file" | awk -v file="${file##*/}" '
      function newer(op) {
        return op ~ /^v[a-z]/ && op !~ /^ver[rw]$/ ||  # AVX and later
          op ~ /^(andn|bextr|bls[ir]|blsmsk|bzhi|mulx|p(dep|ext)|rorx|s[ah][lr]x)[lq]?$/ ||
          op ~ /^(lzcnt|popcnt|movbe|crc32|ad[co]x|cmpxchg16b|aes|sha|pclmul)/ ||
          op ~ /^(addsub|h(add|sub))p[sd]$|^(lddqu|movddup|movs[hl]dup)$/ ||
          op ~ /^(pabs|palignr|ph(add|sub)|pmaddubsw|pmulhrsw|pshufb|psign)/ ||
          op ~ /^(p?blend|dpp|extractps|insertps|movntdqa|mpsadbw|packusdw)/ ||
          op ~ /^(pcmp([ei]str|eqq|gtq)|p(extr|insr)[bdq]|phminpos)/ ||
          op ~ /^(pm(ax|in)(s[bd]|u[dw])|pmov[sz]x|pmuldq|pmulld|ptest|round)/ ||
          op ~ /^k(mov|or|xor|and|not|shift|test|unpck|xnor)/  # AVX-512 masks
      }
      /^[0-9a-f]+ <.*>:$/ {
        name = $2
        if (name !~ /@plt/ && name !~ /^<\./) functions++
        above = name ~ /[0-9]N_(SSSE3|SSE4|AVX)/
        next
      }
      { op = $2 ~ /^(lock|rep|repz|repnz|cs|data16|notrack|bnd)$/ ? $3 : $2 }
      newer(op) { if (!above) { print file ": " name " " op; bad++ } else seen++ }
      END {
        printf "%s: %d functions; %d newer instructions dispatched, %d not\n",
               file, functions, seen, bad
        exit bad > 0 || functions < 100  # a stripped file shows no names
      }'
  done
}

"check_$1" "${@:2}"
