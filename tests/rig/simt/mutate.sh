#!/usr/bin/env bash
# mutate.sh KERNEL.cu... -- PROGRAM...
# Takes each wait out of the kernels in turn (simt.h says what that means) and runs
# the programs until one of them fails. Fails itself where none does: the test is
# too weak there, or the kernel does not need the wait.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/waits.sh"

kernels=()
while [[ $1 != -- ]]; do
  kernels+=("$1")
  shift
done
shift
[[ ${#kernels[@]} -gt 0 && $# -gt 0 ]] || exit 2
for program in "$@"; do # one that cannot run would fail whatever is taken out
  [[ -x $program ]] || { echo "no program $program" && exit 2; }
done

# As the tests run them.
launcher=()
setarch -R true 2>/dev/null && launcher=(setarch -R)

# A program that does not end has noticed as well.
fails() { ! timeout 600 "${launcher[@]}" "$@" >/dev/null 2>&1; }

n_waits=0 n_survivors=0
for kernel in "${kernels[@]}"; do
  while IFS=: read -r line text; do
    n_waits=$((n_waits + 1))
    export KVEVICT_SIMT_REMOVE=${kernel##*/}:$line
    noticed=
    for program in "$@"; do
      if fails "$program"; then
        noticed=${program##*/}
        break
      fi
    done
    if [[ -n $noticed ]]; then
      echo "$KVEVICT_SIMT_REMOVE: $noticed fails without it"
    else
      n_survivors=$((n_survivors + 1))
      echo "$KVEVICT_SIMT_REMOVE: nothing fails without it: ${text#"${text%%[! ]*}"}"
    fi
  done < <(list_waits "$kernel")
done
echo "$n_waits waits, $n_survivors not needed by any test"
[[ $n_waits -gt 0 && $n_survivors == 0 ]]
