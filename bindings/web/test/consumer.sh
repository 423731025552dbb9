#!/usr/bin/env bash
# consumer.sh NPM NODE PACKAGE [COMMAND...]: packs the package, installs it in a folder of its
# own and loads it by its name: both modules, and the WebGPU part. A command is run in place
# of that, with the installed folder in KVEVICT_CONSUMER.
set -euo pipefail
npm=$1 node=$2 package=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$package" && "$npm" pack --silent --cache "$work/cache" --pack-destination "$work" >/dev/null)
mkdir -p "$work/node_modules/@kvevict/web"
tar -C "$work/node_modules/@kvevict/web" --strip-components=1 -xf "$work"/kvevict-web-*.tgz
if [[ $# -gt 3 ]]; then
  export KVEVICT_CONSUMER=$work
  "${@:4}"
  exit
fi
cat >"$work/program.mjs" <<'PROGRAM'
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { load, fullModule, KvevictError, createEvictionPolicy } from "@kvevict/web";
import * as webgpu from "@kvevict/web/webgpu";
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
// Without a GPU: arguments are checked before a device is used.
assert.throws(() => webgpu.createEvictor({}, { shape: { nKvHeads: 1, kHeadDim: 8, maxTokens: 64 },
                                               policy: { kind: "snapkv", budget: 8 } }),
              /policy.budget 8 <= sink 4/);
const folder = "node_modules/@kvevict/web";
const { exports } = JSON.parse(readFileSync(`${folder}/package.json`));
for (const entry of [".", "./webgpu"]) {
  assert.equal(Object.keys(exports[entry])[0], "types"); // compilers take what comes first
  readFileSync(`${folder}/${exports[entry].types}`);
}
const declared = readFileSync(`${folder}/${exports["./webgpu"].types}`, "utf8")
  .matchAll(/^export declare (?:class|function) (\w+)/gm);
assert.deepEqual(Array.from(declared, ([, name]) => name).sort(), Object.keys(webgpu).sort());
PROGRAM
expected=$'0.1.0 20 true\nINVALID_ARGUMENT\n0.1.0 20 true\nINVALID_ARGUMENT'
version=$("$node" -p "require('$package/package.json').version")
diff <(cd "$work" && "$node" program.mjs) <(echo "${expected//0.1.0/$version}")
