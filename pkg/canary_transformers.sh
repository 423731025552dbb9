#!/usr/bin/env bash
# canary_transformers.sh BUILD: integrations/transformers.js with the newest transformers.js in
# place of the pinned one, on the wasm provider. Fails if a test does.
set -euo pipefail
build=$1 tests=integrations/transformers.js/test
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm install --prefix "$work" --no-audit --no-fund --silent --ignore-scripts \
  @huggingface/transformers@latest
grep -m1 '"version"' "$work/node_modules/@huggingface/transformers/package.json"
KVEVICT_WEB_REQUIRED=1 $tests/run.sh $tests/model.test.mjs "$work" \
  "$build/integrations/transformers.js/package" "$build/bindings/web/package"
