#!/usr/bin/env bash
# unit.sh class|module|compiled JAR NATIVES_JAR PLATFORM TEST_CLASSES GOLDEN_DIR NOT_WRAPPED: the unit
# tests, on the class path, on the module path, or on the class path with every method compiled:
# only then is an object given up as soon as nothing reads it any more.
set -euo pipefail
where=$1 jar=$2 natives=$3 platform=$4 classes=$5 golden=$6 not_wrapped=$7
if [[ $where != module ]]; then
  options=(-cp "$jar:$natives:$classes" dev.kvevict.TestMain)
else
  options=(-p "$jar:$natives" --add-modules "dev.kvevict.natives.$platform"
    --patch-module "dev.kvevict=$classes" -m dev.kvevict/dev.kvevict.TestMain)
fi
if [[ $where == compiled ]]; then
  options=(-Xcomp -XX:-TieredCompilation -XX:CompileCommand=quiet
    '-XX:CompileCommand=compileonly,dev.kvevict.*::*' "${options[@]}")
fi
status=0
output=$(java -Xcheck:jni -ea "${options[@]}" "$golden" "$not_wrapped" 2>&1) || status=$?
printf '%s\n' "$output"
if grep -q WARNING <<<"$output"; then
  echo "the JVM warns of native code"
  exit 1
fi
exit "$status"
