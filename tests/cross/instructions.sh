#!/usr/bin/env bash
# instructions.sh BUILD: the table of docs/platforms.md: what compilers make for
# arm64 of the loops that scoring spends its time in, since an emulator cannot
# measure time. Fails if that page says otherwise of GCC 12.
set -euo pipefail
source=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
objects=$(realpath "$1")/core/CMakeFiles/kvevict_core.dir/kernels
export LC_ALL=C
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# of FILE FUNCTION TARGET: of its innermost loops the one with the most multiply-adds, or
# the shortest of these: "instructions, multiply-adds".
# multiply-adds, of those the shortest: "instructions, multiply-adds".
of() {
  [[ -e $work/$1 ]] || aarch64-linux-gnu-objdump -d --no-show-raw-insn -C "$objects/$1.cc.o" |
    awk -f "$source/tests/cross/loops.awk" >"$work/$1"
  grep -E "N_$3::$2" "$work/$1" | sort -t $'\t' -k3,3nr -k2,2n |
    awk -F '\t' 'NR == 1 { printf "%d, %d", $2, $3 }'
}

table() {
  local what file function target row
  echo '| loop | NEON | SVE, 256 bits | SVE2, 128 bits | SVE, any length |'
  echo '|---|---|---|---|---|'
  while IFS='|' read -r what file function; do
    row="| $what |"
    for target in NEON_WITHOUT_AES SVE_256 SVE2_128 SVE; do
      row+=" $(of "$file" "$function" "$target") |"
    done
    echo "$row"
  done <<'LOOPS'
logits of 8 queries and two vectors of keys|window_attention|MultiplyTile
2^x of a vector of logits|window_attention|ExpTile
squares of rows of f32|row_norm|NormsOfWholeRows<.*DecodeF32>
squares of rows of f16|row_norm|NormsOfWholeRows<.*DecodeF16>
squares of rows of bf16|row_norm|NormsOfWholeRows<.*DecodeBF16>
attention: 4 queries by 4 keys of f32|attention|(AttendByDots|DotKeys).*WholeRows<.*DecodeF32>
attention: 4 queries by 4 keys of bf16|attention|(AttendByDots|DotKeys).*WholeRows<.*DecodeBF16>
LOOPS
}

table | tee "$work/table"
[[ $(aarch64-linux-gnu-g++ -dumpversion) == 12* ]] || exit 0
while read -r row; do
  grep -qxF "$row" "$source/docs/platforms.md" || {
    echo "docs/platforms.md has no row '$row'" && exit 1
  }
done <"$work/table"
