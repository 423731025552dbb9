#!/usr/bin/env bash
# pages.sh PREFIX: the installed manual page and completion know every command and
# option of the installed program.
set -euo pipefail
program=$1/bin/kvevict
fail() {
  echo "$*" >&2
  exit 1
}

# ---- The manual page ----

page=$1/share/man/man1/kvevict.1
[[ -f $page ]] || page=$page.gz
[[ -f $page ]] || fail "no manual page"
if command -v man >/dev/null; then
  warnings=$(MANROFFSEQ='' man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null)
  [[ -z $warnings ]] || fail "$warnings"
else
  echo "no man here: nobody looks for mistakes in the page's form"
fi
manual=$(gzip -cdf <"$page" | sed 's/\\-/-/g; s/\\f.//g')

# section COMMAND: the page's section on it; on the program itself for "".
section() {
  awk -v command="$1" '
    /^\.SH/ { inside = command == "" && $2 == "OPTIONS" }
    /^\.SS/ { inside = $3 == command }
    inside' <<<"$manual"
}

# ---- Completion ----

# complete WORD...: completions of the last word, which may be empty.
complete_words() {
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _kvevict
  printf '%s\n' "${COMPREPLY[@]}"
}
compopt() { :; } # it only works while a shell completes
. "$1/share/bash-completion/completions/kvevict"

mapfile -t commands < <("$program" --help | sed -n '/^Subcommands/,$s/^  \([a-z]\+\) .*/\1/p')
[[ ${#commands[@]} -ge 3 ]] || fail "commands: ${commands[*]}"
for command in "" "${commands[@]}"; do
  if [[ -n $command ]]; then
    grep -qx -- "$command" < <(complete_words kvevict "") || fail "completion without $command"
  fi
  # shellcheck disable=SC2086
  help=$("$program" $command --help)
  mapfile -t options < <(grep -oE '^  (-[a-z],)?--[a-z-]+' <<<"$help" | grep -oE -- '--[a-z-]+')
  [[ ${options[*]} == *--help* ]] || fail "options of '$command': ${options[*]}"
  mapfile -t known < <(section "$command" | awk '/^\.TP/ { getline; print }' |
    grep -oE -- '--[a-z-]+' | sort -u)
  # shellcheck disable=SC2086
  mapfile -t completed < <(complete_words kvevict $command --)
  for option in "${options[@]}"; do
    [[ " ${known[*]} " == *" $option "* ]] || fail "manual without $command $option"
    [[ " ${completed[*]} " == *" $option "* ]] || fail "completion without $command $option"
  done
done

expect() {
  local want=$1 got
  shift
  got=$(complete_words "$@" | tr '\n' ' ')
  [[ $got == "$want " ]] || fail "'$*' becomes '$got', not '$want'"
}
expect "plan" kvevict pl
expect "--tokens --threads" kvevict demo --t
expect "f32 f16" kvevict demo --dtype f
expect "" kvevict demo --tokens 1
expect "snapkv-kvpress" kvevict plan snapkv-kvp
expect "snapkv-web-llm" kvevict demo --policy snapkv-w
cd "$1"
expect "bin" kvevict calibration bi
