// Models of transformers.js that evict, on the wasm provider.
import assert from "node:assert/strict";
import { test } from "node:test";
import { kvevict, loadModel, transformers } from "./packages.mjs";
import { makeDecoder } from "./decoder.mjs";
import { chat, textOf, tokens } from "./rig.mjs";
const { addQueryOutputs, withEviction } = kvevict;

const integers = (rows) => new transformers.Tensor("int64", BigInt64Array.from(rows.flat(), BigInt),
                                                   [rows.length, rows[0].length]);

for (const graph of [{ kind: "decomposed" }, { kind: "gqa", heads: 6, kvHeads: 2 }]) {
  for (const policy of [{ kind: "keydiff", budget: 40, margin: 4 },
                        { kind: "snapkv", budget: 40, window: 8, margin: 8 }]) {
    test(`generate() with ${JSON.stringify(graph)} and ${textOf(policy)} says what the reference says`, async () => {
      const onnx = makeDecoder(graph);
      const model = await loadModel(graph, onnx);
      const eviction = await withEviction(model, { policy: textOf(policy), onnx });
      const result = await chat(transformers, model, eviction, graph, policy);
      assert.deepEqual(result.said, result.expected);
      assert.equal(result.stored, result.referenceStored);
      assert.ok(result.evictions >= 3, `${result.evictions} evictions`);
      assert.equal(result.seen, 90 + 8 + 20 + 1 + 15 + 8 - 1);
      await model.dispose();
    });
  }
}

test("without eviction the same chat says something else", async () => {
  const graph = { kind: "decomposed" };
  const onnx = makeDecoder(graph);
  const model = await loadModel(graph, onnx);
  const policy = { kind: "keydiff", budget: 40, margin: 4 };
  const eviction = await withEviction(model, { policy: textOf(policy) });
  eviction.remove();
  const { said, expected, stored, seen } = await chat(transformers, model, eviction, graph, policy);
  assert.notDeepEqual(said, expected);
  assert.equal(stored, 141);
  assert.equal(seen, 141);
});

test("a configuration of web engines, and what a step reports", async () => {
  const onnx = makeDecoder();
  const model = await loadModel({}, addQueryOutputs(onnx, { window: 8 }));
  const steps = [];
  const eviction = await withEviction(model, { kind: "snapkv", budget: 40, observationWindow: 8,
                                               onStep: (step) => steps.push(step) });
  assert.equal(eviction.policy, "snapkv:budget=40,window=8");
  await model.generate({ input_ids: integers([tokens(60)]), max_new_tokens: 3, do_sample: false });
  const bytes = (n) => n * 2 * 2 * 2 * 16 * 4;
  assert.deepEqual(steps[0], { seen: 60, stored: 40, bytesBefore: bytes(60), bytesAfter: bytes(40),
                               by: "wasm", evicted: true, reason: undefined });
  assert.equal(steps.length, 3);
  assert.deepEqual(eviction.last, steps[2]);
});

test("a cache of before goes on, one of an earlier turn only if nothing was evicted of it", async () => {
  const model = await loadModel({}, makeDecoder());
  const say = async (ids, cache) => {
    const out = await model.generate({ input_ids: integers([ids]), attention_mask: integers([ids.map(() => 1)]),
      past_key_values: cache, max_new_tokens: 2, do_sample: false, return_dict_in_generate: true });
    return { ids: Array.from(out.sequences.data, Number), cache: out.past_key_values };
  };
  const copy = ({ cache }) => new transformers.DynamicCache({ ...cache });
  const before = await say(tokens(30), null);
  const eviction = await withEviction(model, { kind: "keydiff", budget: 40 });
  const small = await say([...before.ids, 1], before.cache);
  assert.equal(eviction.last.stored, 34);
  const kept = copy(small);
  const large = await say([...small.ids, ...tokens(9, 70)], small.cache);
  assert.deepEqual([eviction.last.stored, eviction.last.seen], [40, 45]);
  const again = await say([...small.ids, ...tokens(9, 70)], kept);
  assert.deepEqual(again.ids, large.ids);
  const stale = copy(large);
  await say([...large.ids, 3], large.cache);
  await assert.rejects(say([...large.ids, 3], stale), /40 of 45 tokens has been read on from already: its sequence now has 48/);
});

test("beams, batches and padding are left alone, with the reason", async () => {
  const model = await loadModel({}, makeDecoder());
  const say = (rows, more) => model.generate({ input_ids: integers(rows), max_new_tokens: 4, do_sample: false, ...more });
  const cases = [
    [[tokens(60)], { num_beams: 2 }, /^2 beams: /],
    [[tokens(60), tokens(60, 9)], {}, /^a batch of 2: /],
    [[tokens(60)], { attention_mask: integers([[0, 0, ...Array(58).fill(1)]]) }, /^attention_mask hides tokens/],
  ];
  for (const [rows, more, reason] of cases) {
    const plain = await say(rows, more);
    const eviction = await withEviction(model, { kind: "keydiff", budget: 40 });
    const ours = await say(rows, more);
    assert.match(eviction.last.reason, reason);
    assert.equal(eviction.last.stored, 63);
    assert.deepEqual(ours.data, plain.data);
    eviction.remove();
  }
});

test("beams on an evicted cache are refused", async () => {
  const model = await loadModel({}, makeDecoder());
  await withEviction(model, { kind: "keydiff", budget: 40 });
  const say = (ids, more) => model.generate({ input_ids: integers([ids]),
    attention_mask: integers([ids.map(() => 1)]), max_new_tokens: 2, do_sample: false,
    return_dict_in_generate: true, ...more });
  const { past_key_values, sequences } = await say(tokens(60));
  await assert.rejects(say([...Array.from(sequences.data, Number), 1], { past_key_values, num_beams: 2 }),
                       /2 beams: .*, but tokens of this cache have been evicted/);
});

test("without a policy the model stays as it is", async () => {
  const model = await loadModel({}, makeDecoder());
  const eviction = await withEviction(model, {});
  assert.equal(eviction.policy, "none");
  assert.equal(Object.hasOwn(model.sessions.model, "run"), false);
  assert.equal(Object.hasOwn(model, "prepare_inputs_for_generation"), false);
  eviction.remove();
});

test("models that are no decoders with whole attention are refused", async () => {
  const model = await loadModel({}, makeDecoder());
  const options = { kind: "keydiff", budget: 40 };
  const refused = (config, sentence) => assert.rejects(
    withEviction({ config, sessions: model.sessions }, options), sentence);
  await refused({ is_encoder_decoder: true, model_type: "t5" }, /of type t5 .* only decoders/);
  await refused({ layer_types: ["full_attention", "sliding_attention"] }, /sliding window of slots/);
  await refused({ sliding_window: 512, max_position_embeddings: 4096 }, /sliding window of 512 slots/);
  const eviction = await withEviction(model, options);
  await assert.rejects(withEviction(model, options), /evicts already/);
  eviction.remove();
  (await withEviction(model, options)).remove();
  assert.equal(Object.hasOwn(model.sessions.model, "run"), false);
  assert.equal(Object.hasOwn(model, "prepare_inputs_for_generation"), false);
});
