// The page's figures are those of `kvevict demo`, through the wasm core: the same text, weights,
// cache and recall.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Experiment } from "../experiment.js";
import { policies } from "../policies.js";
import { makeWorkload } from "../recall/workload.js";
import { serve } from "../serve.mjs";
import { nativeResults } from "./native.mjs";

const web = await import(process.env.KVEVICT_WEB);
const kv = await web.load(web.fullModule);
const [nTokens, seed] = [4096, 1];
const experiment = new Experiment(web, kv, nTokens, seed);
for (let done = 0; done < nTokens;) done = experiment.read(done); // throws on a wrong answer

for (const budget of [128, 512, 2048]) {
  test(`${budget} tokens: every policy has the program's figures`, async () => {
    const native = nativeResults(nTokens, seed, budget);
    for (const { text } of policies) {
      const result = await experiment.evaluate(text, budget);
      const { kv_bytes_before, kv_bytes_after, recall_asked, recall_unasked } = native.get(text);
      assert.deepEqual(
        { text, before: result.bytesBefore, after: result.bytesAfter, asked: result.asked,
          unasked: result.unasked },
        { text, before: kv_bytes_before, after: kv_bytes_after, asked: recall_asked,
          unasked: recall_unasked });
      const slots = result.kept.flat();
      assert.equal(slots.reduce((sum, positions) => sum + positions.length, 0) * 2 * 128 * 4,
                   result.bytesAfter);
      for (const positions of slots) {
        assert.ok(positions.every((p, i) => p < nTokens && (i === 0 || p > positions[i - 1])));
      }
    }
    assert.ok(new Set(Array.from(native.values(), (row) => row.recall_asked)).size > 3);
  });
}

test("the text is drawn as the specification says", () => {
  const { tokens, needles } = makeWorkload(2048, 1);
  assert.deepEqual(Array.from(tokens.subarray(0, 6)), [0, 257, 295, 286, 203, 249]);
  assert.deepEqual(Array.from(tokens.subarray(-8)), [97, 1, 86, 1, 113, 1, 118, 1]);
  assert.deepEqual(needles.slice(0, 2), [{ position: 21, key: 91, value: 177, asked: false },
                                         { position: 68, key: 124, value: 156, asked: false }]);
  assert.throws(() => makeWorkload(255, 1), /tokens 255: the model reads 256 to 32768/);
});

test("a policy with a wrong budget is refused with the core's sentence", async () => {
  await assert.rejects(experiment.evaluate("snapkv", 30), /budget 30/);
  assert.equal((await experiment.evaluate("none", 512)).asked, 1);
});

test("the folder is served, and nothing outside it", async () => {
  const server = await serve(process.env.KVEVICT_DEMO, 0);
  const root = `http://127.0.0.1:${server.address().port}`;
  const get = async (path) => {
    const response = await fetch(root + path);
    await response.arrayBuffer();
    return [response.status, response.headers.get("content-type")];
  };
  try {
    assert.deepEqual(await get("/"), [200, "text/html; charset=utf-8"]);
    assert.deepEqual(await get("/kvevict/dist/kvevict-full.wasm"), [200, "application/wasm"]);
    for (const path of ["/%zz", "/recall", "/..%2f..%2fweb.cmake", "/..%2fpackage%2fwebgpu%2findex.js",
                        "/\0.js"]) {
      assert.deepEqual(await get(path), [404, null], path);
    }
  } finally {
    server.close();
    server.closeAllConnections();
  }
});
