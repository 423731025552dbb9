// What the adapter uses of web-llm is there in the version that it is written for. The text is
// read, since the package needs a browser. Without the package the test is skipped.
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { Checkpoints } from "../checkpoint.js";
import { Pipeline } from "./mock.js";

const folder = process.env.KVEVICT_WEB_LLM;
if (folder === undefined || !existsSync(`${folder}/package.json`)) {
  console.log("skipped: no npm package @mlc-ai/web-llm; ./run check web installs it");
  process.exit(process.env.KVEVICT_WEB_REQUIRED ? 1 : 77);
}

test("web-llm 0.2.86 has what the adapter uses", () => {
  assert.equal(JSON.parse(readFileSync(`${folder}/package.json`)).version, "0.2.86");
  const text = readFileSync(`${folder}/lib/index.js`, "utf8");
  const has = (part) => assert.ok(text.includes(part), part);
  const pipeline = new Pipeline({ nLayers: 1, nKvHeads: 1, headDim: 8, pageSize: 16 });
  const names = [];
  const { getGlobalFunc } = pipeline.tvm;
  pipeline.tvm.getGlobalFunc = (name) => {
    names.push(name);
    return getGlobalFunc(name);
  };
  new Checkpoints(pipeline).dispose();
  assert.equal(names.length, 8);
  for (const name of names) has(`"${name}"`);
  // Its own calls have these arguments, in this order.
  for (const call of [
    "getMetadata(this.kvCache, seqId)",
    "prepareImport(this.kvCache, seqId, JSON.stringify(checkpoint.metadata))",
    "finishImport(this.kvCache, seqId)",
    "getSequenceLength(this.kvCache, seqId)",
    "this.fclearKVCaches(state)",
    "this.tvm.empty(info.shape, info.dtype, this.device)",
    "src.copyFromRawBytes(group.data)",
  ]) has(call);
  assert.match(text, /exportPageGroup\(this\.kvCache, seqId, new \S+\(info\.groupId, "int64"\), dst\)/);
  assert.match(text, /importPageGroup\(this\.kvCache, seqId, new \S+\(group\.groupId, "int64"\), src\)/);
  assert.match(text, /this\.fKVCacheAddSequence\(state, new \S+\(0, "int64"\)\)/);
  const order = ["const prepareImport = ", "const importPageGroup = ", "const finishImport = "]
    .map((part) => text.indexOf(part));
  assert.ok(order[0] > 0 && order[0] < order[1] && order[1] < order[2]);
  // The fields that it reads and writes.
  for (const field of ["this.loadedModelIdToPipeline = new Map()", "this.loadedModelIdToLock = new Map()",
                       "this.filledKVCacheLength = Number(", 'this.kvStateKind !== "kv_cache"',
                       "this.contextWindowSize", "resetChat(keepStats = false)"]) has(field);
  assert.match(text, /\sscalar\(value, dtype\) \{/);
});
