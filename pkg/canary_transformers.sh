#!/usr/bin/env bash
# canary_transformers.sh BUILD: the tests of integrations/transformers.js with the newest
# transformers.js in place of the pinned one. Fails if one of them does.
set -euo pipefail
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm install --prefix "$work" --no-audit --no-fund --silent --ignore-scripts \
  @huggingface/transformers@latest
version=$(node -p "require('$work/node_modules/@huggingface/transformers/package.json').version")
echo "transformers.js $version"
for name in model; do
  KVEVICT_WEB_REQUIRED=1 integrations/transformers.js/test/run.sh \
    "integrations/transformers.js/test/$name.test.mjs" "$work" \
    "$build/integrations/transformers.js/package" "$build/bindings/web/package"
done
