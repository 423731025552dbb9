#!/usr/bin/env bash
# natives.sh NATIVES_JAR PLATFORM: the packed library is self-contained and shows the JNI's
# functions alone, and the licences of what it contains lie beside it.
set -euo pipefail
checker=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/self_contained.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
jar xf "$1"
grep -q 'Permission is hereby granted' META-INF/LICENSE
for part in 'The Highway Project Authors' 'Redistributions in binary form'; do
  grep -qF "$part" META-INF/NOTICE || { echo "META-INF/NOTICE lacks: $part" && exit 1; }
done
"$checker" "META-INF/native/dev.kvevict/$2/libkvevict_java.so" \
  'JNI_On(L|Unl)oad|Java_dev_kvevict_Native[A-Za-z]*_[A-Za-z0-9_]+'
