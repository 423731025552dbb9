#!/usr/bin/env bash
# consumer.sh NPM NODE PACKAGE: packs the package, installs it in a folder of its own and
# loads it by its name, both modules.
set -euo pipefail
npm=$1 node=$2 package=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$package" && "$npm" pack --silent --cache "$work/cache" --pack-destination "$work" >/dev/null)
mkdir -p "$work/node_modules/@kvevict/web"
tar -C "$work/node_modules/@kvevict/web" --strip-components=1 -xf "$work"/kvevict-web-*.tgz
cat >"$work/program.mjs" <<'PROGRAM'
import { load, fullModule, KvevictError, createEvictionPolicy } from "@kvevict/web";
for (const source of [undefined, fullModule]) {
  const kv = await load(source);
  const plan = kv.context().plan(
    { nLayers: 1, maxTokens: 64, layers: { nQHeads: 1, nKvHeads: 1, kHeadDim: 8, vHeadDim: 8 } },
    kv.policy("streaming-llm:budget=8"));
  const sequence = plan.sequence();
  sequence.append(20);
  console.log(kv.version, sequence.storedLength(), createEvictionPolicy().isNoOp);
  try {
    kv.policy("streaming-llm:budget=0");
  } catch (error) {
    if (!(error instanceof KvevictError)) throw error;
    console.log(error.statusName);
  }
}
PROGRAM
expected=$'0.1.0 20 true\nINVALID_ARGUMENT\n0.1.0 20 true\nINVALID_ARGUMENT'
version=$("$node" -p "require('$package/package.json').version")
diff <(cd "$work" && "$node" program.mjs) <(echo "${expected//0.1.0/$version}")
