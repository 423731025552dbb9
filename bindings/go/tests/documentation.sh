#!/usr/bin/env bash
# documentation.sh GO...: what `go doc` prints names nothing of C and no internal package.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
text=$("$@" doc -all .)
! grep -n '\bnative\.' <<<"$text" || { echo "an internal package" && exit 1; }
"$here/../../table/c_names.sh" kvevict_static AVX3_DL PKG_CONFIG_PATH LD_LIBRARY_PATH <<<"$text"
