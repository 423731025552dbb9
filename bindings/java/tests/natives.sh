#!/usr/bin/env bash
# natives.sh NATIVES_JAR PLATFORM: the packed library is self-contained and shows the JNI's
# functions alone.
set -euo pipefail
checker=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/self_contained.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
jar xf "$1"
[[ -f META-INF/LICENSE ]]
"$checker" "META-INF/native/dev.kvevict/$2/libkvevict_java.so" \
  'JNI_On(L|Unl)oad|Java_dev_kvevict_Native[A-Za-z]*_[A-Za-z0-9_]+'
