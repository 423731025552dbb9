#!/usr/bin/env bash
# run.sh TEST MODULES PACKAGE WEB: runs TEST of the package with the npm packages in MODULES and
# @kvevict/web in WEB. Exits with 77 where something is missing; with KVEVICT_WEB_REQUIRED set
# that is a failure.
set -u
test=$1
export KVEVICT_MODULES=$2/package.json KVEVICT_PACKAGE=$3 KVEVICT_WEB=$4
export KVEVICT_TRANSFORMERS=$3/dist/index.js

missing() {
  echo "skipped: $*; ./run check web installs what it needs and runs it"
  [[ -z ${KVEVICT_WEB_REQUIRED:-} ]] && exit 77
  exit 1
}

command -v node >/dev/null || missing "no node"
version=$(node --version)
version=${version#v}
((${version%%.*} >= 20)) || missing "node $version is older than 20"
[[ -d $2/node_modules/@huggingface/transformers ]] ||
  missing "no npm package @huggingface/transformers in $2"
if [[ $test == */browser.test.mjs ]]; then
  [[ -n ${KVEVICT_WEB_REQUIRED:-} ]] || missing "takes minutes"
  KVEVICT_CHROMIUM=$(command -v chromium || command -v chromium-browser) ||
    missing "no chromium"
  export KVEVICT_CHROMIUM
fi
if [[ $test == */export.test.mjs ]]; then
  for KVEVICT_PYTHON in python3 /usr/bin/python3 ''; do
    "$KVEVICT_PYTHON" -c 'import torch.onnx' 2>/dev/null && break
  done
  export KVEVICT_PYTHON
  [[ -n $KVEVICT_PYTHON ]] || { echo "skipped: no python3 with torch" && exit 77; }
fi
exec node --test --test-reporter=spec "$test"
