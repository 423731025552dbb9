// Sessions of onnxruntime-web that evict, on the wasm provider.
import assert from "node:assert/strict";
import { test } from "node:test";
import { create, kvevict, ort } from "./packages.mjs";
import { makeDecoder } from "./decoder.mjs";
import { Reader, compare, graphs, isByLength, policies, textOf, tokens, best } from "./rig.mjs";
const { addQueryOutputs, evictSession } = kvevict;

for (const graph of graphs) {
  test(`logits of ${JSON.stringify(graph)} are those of the reference`, async () => {
    const onnx = makeDecoder(graph);
    for (const policy of policies) {
      const session = await create(addQueryOutputs(onnx, { window: 8 }));
      const eviction = await evictSession(session, { policy: textOf(policy), onnx });
      const result = await compare(ort, session, eviction, graph, policy, isByLength(graph));
      const what = `${textOf(policy)}: ${JSON.stringify(result)}`;
      assert.ok(result.apart < 1e-5, what);
      assert.ok(result.isAsLong, what);
      assert.ok(result.evictions >= 3, what);
      await session.release();
    }
  });
}
