// Sessions of onnxruntime-web that evict, on the wasm provider.
import assert from "node:assert/strict";
import { test } from "node:test";
import { create, kvevict, ort } from "./packages.mjs";
import { makeDecoder } from "./decoder.mjs";
import { Reader, compare, graphs, policies, textOf, tokens, best } from "./rig.mjs";
const { addQueryOutputs, evictSession } = kvevict;

for (const graph of graphs) {
  test(`logits of ${JSON.stringify(graph)} are those of the reference`, async () => {
    const onnx = makeDecoder(graph);
    for (const policy of policies) {
      const session = await create(addQueryOutputs(onnx, { window: 8 }));
      const eviction = await evictSession(session, { policy: textOf(policy), onnx });
      const result = await compare(ort, session, eviction, graph, policy);
      const what = `${textOf(policy)}: ${JSON.stringify(result)}`;
      assert.ok(result.apart < 1e-5, what);
      assert.ok(result.isAsLong, what);
      assert.ok(result.evictions >= 3, what);
      await session.release();
    }
  });
}

test("the same session with a full cache, whose mask hides the evicted tokens, says the same", async () => {
  for (const graph of [{ kind: "decomposed" }, { halfCache: true }, { kind: "mha", heads: 4, kvHeads: 4 }]) {
    const onnx = makeDecoder(graph);
    const evicting = await create(onnx);
    await evictSession(evicting, { kind: "streaming-llm", budget: 40 });
    const [ours, full] = [new Reader(ort, evicting, graph), new Reader(ort, await create(onnx), graph)];
    const hidden = new Set();
    let next = tokens(100);
    for (let i = 0; i < 30; ++i) {
      const [x, y] = [await ours.read(next), await full.read(next, { hidden })];
      const apart = Math.max(...x.map((logit, j) => Math.abs(logit - y[j])));
      assert.ok(apart < 1e-5, `step ${i}: ${apart}`);
      next = [best(y)];
      for (let p = 4; p < full.seen - 36; ++p) hidden.add(p); // sinks and the most recent stay
    }
    assert.equal(ours.bytes / full.bytes, 40 / 129);
  }
});

test("heads and layers may keep one list, evictions may wait, prompts may be pinned", async () => {
  const lengths = async (policy, steps) => {
    const session = await create(makeDecoder());
    const eviction = await evictSession(session, { policy });
    const reader = new Reader(ort, session, {});
    const stored = [];
    for (const n of steps) {
      await reader.read(tokens(n, reader.seen));
      stored.push(eviction.last.stored);
    }
    return stored;
  };
  assert.deepEqual(await lengths("knorm:budget=40,scope=model,every=3", [50, 1, 1, 1, 1, 1, 1, 1]),
                   [40, 41, 42, 40, 41, 42, 40, 41]);
  assert.deepEqual(await lengths("random:budget=0.5", [40, 1, 1, 20]), [20, 20, 21, 31]);
  assert.deepEqual(await lengths("keydiff:budget=32,prompt=pinned", [20, ...Array(16).fill(1)]),
                   [...Array.from({ length: 12 }, (_, i) => 20 + i), 32, 32, 32, 32, 32]);
  assert.deepEqual(await lengths("keydiff:budget=32,select_block=4", [50, 1]), [30, 31]);
});

test("a cache in f16 is evicted as it is", async () => {
  const graph = { halfCache: true };
  const session = await create(addQueryOutputs(makeDecoder(graph), { window: 8 }));
  const policy = { kind: "snapkv", budget: 40, window: 8, margin: 8 };
  const eviction = await evictSession(session, { policy: textOf(policy) });
  const result = await compare(ort, session, eviction, graph, policy);
  // In each of two layers values of about 1 are rounded by up to 2 ** -11.
  assert.ok(result.apart < 2 ** -10 && result.isAsLong && result.evictions >= 3, JSON.stringify(result));
  assert.equal(eviction.last.bytesAfter, eviction.last.stored * 2 * 2 * 2 * 16 * 2);
});

test("a graph that rotates by length may have its table elsewhere: rope is given", async () => {
  const graph = { kind: "gqa" };
  const onnx = makeDecoder(graph);
  const { rope, ...without } = kvevict.inspectGraph(onnx);
  const session = await create(onnx);
  await assert.rejects(evictSession(session, { kind: "keydiff", budget: 40, graph: without }),
                       /rotates keys by their slots, and its table lies in another file/);
  const eviction = await evictSession(session, { kind: "keydiff", budget: 40, graph: without, rope });
  const result = await compare(ort, session, eviction, graph, { kind: "keydiff", budget: 40 });
  assert.ok(result.apart < 1e-5 && result.evictions > 3, JSON.stringify(result));
});

test("policies that the graph or its cache cannot serve are refused, with the reason", async () => {
  const onnx = makeDecoder();
  const session = await create(onnx);
  const refused = (options, sentence) => assert.rejects(evictSession(session, options), sentence);
  await refused({ kind: "snapkv", budget: 40 }, /scores by queries, and the graph has no outputs query\.N: addQueryOutputs/);
  await refused({ policy: "snapkv:budget=40,heads=adaptive" }, /heads would keep different numbers/);
  await refused({ kind: "pyramidkv", budget: 40 }, /layers would keep different numbers/);
  await refused({ kind: "h2o", budget: 40 }, /needs the queries or the attention of all tokens/);
  await refused({ policy: "q-filter:budget=40" }, /needs key_filter, which a graph does not give/);
  await refused({ policy: "keydiff:budget=40,rotate=yes" }, /takes position_ids, which count on/);
  await refused({ policy: "keydiff:budget=40", budget: 3 }, /give one of them/);
  await refused({ kind: "keydiff", budget: -1 }, /budget="-1" is not/);
  assert.equal(Object.hasOwn(session, "run"), false);
  const byLength = await create(makeDecoder({ kind: "gqa" }));
  await assert.rejects(evictSession(byLength, { kind: "keydiff", budget: 40 }),
                       /no input position_ids; .* pass its bytes as `onnx`/);
  const few = await create(addQueryOutputs(onnx, { window: 4 }));
  await evictSession(few, { kind: "snapkv", budget: 40, observationWindow: 8 });
  await assert.rejects(new Reader(ort, few, {}).read(tokens(60)),
                       /needs 8 queries, the graph gives the last 4 of 60: addQueryOutputs\(bytes, \{ window: 8 \}\)/);
});

test("positions and masks that do not go on are refused", async () => {
  const session = await create(makeDecoder());
  await evictSession(session, { kind: "keydiff", budget: 40 });
  const reader = new Reader(ort, session, {});
  await reader.read(tokens(60));
  await assert.rejects(reader.read([1], { position_ids: reader.integers([40]) }),
                       /position_ids begin with 40, but 60 tokens were seen/);
  await assert.rejects(reader.read([1], { attention_mask: reader.integers(Array(41).fill(1)) }),
                       /attention_mask has 41 tokens, not 61: 60 seen and 1 new/);
  await reader.read([1]);
});

test("caches and queries of other shapes are refused, and what was not asked for is missed", async () => {
  const tensor = (type, ...dims) => new ort.Tensor(type, new { float32: Float32Array, float64: Float64Array }[type](
    dims.reduce((product, dim) => product * dim, 1)), dims);
  const refused = async (outputs, sentence, policy = "keydiff:budget=4") => {
    const names = ["past_key_values.0.key", "past_key_values.0.value"];
    const session = { inputNames: ["input_ids", "position_ids", ...names], outputNames: ["query.0"],
                      run: async () => outputs };
    await evictSession(session, { policy });
    const past = tensor("float32", 1, 2, 0, 8);
    await assert.rejects(session.run({ input_ids: tensor("float32", 1, 6), [names[0]]: past, [names[1]]: past }),
                         sentence);
  };
  const both = (cache, more) => ({ "present.0.key": cache, "present.0.value": cache, ...more });
  await refused({}, /not asked for every present\.N\.key/);
  await refused(both(tensor("float32", 1, 2, 6, 8)), /not asked for every .* query\.N/, "tova:budget=4");
  await refused(both(tensor("float32", 2, 6, 8)), /present\.0\.key is \[2,6,8\], not \[1, heads, tokens, dim\]/);
  await refused(both(tensor("float64", 1, 2, 6, 8)), /present\.0\.key is float64: float32 and float16 are known/);
  await refused(both(tensor("float32", 1, 2, 6, 8), { "query.0": tensor("float32", 1, 3, 6, 8) }),
                /query\.0 is \[1,3,6,8\], 3 heads of 8 elements: no multiple of 2 KV heads/, "tova:budget=4");
});
