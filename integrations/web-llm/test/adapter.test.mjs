// The adapter against a mock of the checkpoint functions: which rows stay, where their keys are
// turned to, the order of calls, and what is refused.
import assert from "node:assert/strict";
import { test } from "node:test";
import { WebLLMEvictor } from "../index.js";
import { Pipeline } from "./mock.js";

const { load } = await import(process.env.KVEVICT_WEB);
const kv = await load();
const shape = { nLayers: 3, nKvHeads: 2, headDim: 8, pageSize: 16 };
const rope = { theta: 100 };
const frequency = (f) => Math.fround(100 ** ((-2 * f) / shape.headDim));

// A row of token t, in [-1, 1): the keys before RoPE, the values as they are stored.
function drawn({ layer, head, plane }, t) {
  let state = ((t * 31 + layer) * 31 + head) * 31 + plane + 1;
  return Array.from({ length: shape.headDim }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor(state / 2 ** 23) / 256 - 1; // f16 has it exactly
  });
}
function rotated(row, position) {
  const half = row.length / 2;
  return row.map((_, i) => {
    const f = i % half;
    const [x, y] = [row[f], row[f + half]];
    const angle = position * frequency(f);
    return i < half ? x * Math.cos(angle) - y * Math.sin(angle)
      : x * Math.sin(angle) + y * Math.cos(angle);
  });
}

// A chat: its cache, and for each layer and head which token lies in each slot.
class Chat {
  constructor(options = {}, isRotated = true) {
    this.pipeline = new Pipeline({ ...shape, ...options });
    this.cache = this.pipeline.kvCache;
    this.isRotated = isRotated;
    this.nTokens = 0;
    this.nEvictions = 0;
    this.tokens = Array.from({ length: shape.nLayers }, () =>
      Array.from({ length: shape.nKvHeads }, () => []));
  }

  // The next position follows the stored length, as in web-llm.
  append(n) {
    for (let i = 0; i < n; ++i) {
      const t = this.nTokens++;
      this.cache.append((place) => {
        const row = drawn(place, t);
        return place.plane === 0 && this.isRotated ? rotated(row, place.slot) : row;
      });
      this.tokens.flat().forEach((slots) => slots.push(t));
    }
    this.pipeline.filledKVCacheLength += n;
  }

  // Keeps the slots that keep() names, of each head's tokens.
  keep(keep) {
    ++this.nEvictions;
    this.tokens = this.tokens.map((heads, layer) => heads.map((tokens, head) =>
      keep(tokens, layer, head).map((slot) => tokens[slot])));
  }

  // Every stored row is that of its token: values bit by bit, keys at their slots' positions.
  check() {
    const length = this.tokens[0][0].length;
    assert.equal(this.cache.attention_kv_cache_get_sequence_length(0), length);
    assert.equal(this.pipeline.filledKVCacheLength, length);
    assert.equal(this.pipeline.nScopes, 0);
    assert.equal(this.cache.nFreePages, this.cache.all.length - Math.ceil(length / shape.pageSize));
    // A key is rounded when it is stored and at each eviction, as a vector of two elements
    // below 2 in size: by sqrt(2) half units. An f32 rotation has three roundings.
    const unit = this.cache.dtype === "float32" ? 4 * 2 ** -24 : 2 ** -11;
    const bound = (1 + this.nEvictions) * Math.SQRT2 * unit;
    this.tokens.forEach((heads, layer) => heads.forEach((tokens, head) =>
      tokens.forEach((t, slot) => {
        assert.deepEqual(this.cache.row(layer, 1, head, slot), drawn({ layer, head, plane: 1 }, t));
        const key = drawn({ layer, head, plane: 0 }, t);
        const wanted = this.isRotated ? rotated(key, slot) : key;
        this.cache.row(layer, 0, head, slot).forEach((x, i) => {
          assert.ok(Math.abs(x - wanted[i]) <= bound, `${x} for ${wanted[i]}, ${bound}`);
        });
      })));
  }
}

const range = (first, end) => Array.from({ length: end - first }, (_, i) => first + i);
const streaming = (budget) => (tokens) => [
  ...range(0, 4), ...range(tokens.length - budget + 4, tokens.length)];
// Four sinks, and of the others the keys of the least norm.
const byNorm = (budget) => (tokens, layer, head) => {
  const norm = (slot) => Math.hypot(...drawn({ layer, head, plane: 0 }, tokens[slot]));
  const others = range(4, tokens.length).sort((a, b) => norm(a) - norm(b) || a - b);
  return [...range(0, 4), ...others.slice(0, budget - 4)].sort((a, b) => a - b);
};

for (const dtype of ["float16", "float32"]) {
  for (const budget of [17, 32, 37]) {
    test(`${dtype}, ${budget} of 83 tokens: rows stay, keys are turned to their slots`, async () => {
      const chat = new Chat({ dtype });
      chat.append(83);
      const evictor = new WebLLMEvictor(kv, chat.pipeline, {
        policy: `streaming-llm:budget=${budget}`, rope });
      const pageBytes = shape.nLayers * chat.cache.pageBytes;
      assert.deepEqual(await evictor.evict(), {
        evicted: true, nTokensBefore: 83, nTokens: budget, bytesBefore: 6 * pageBytes,
        bytes: Math.ceil(budget / 16) * pageBytes });
      chat.keep(streaming(budget));
      chat.check();
    });
  }
}

test("heads and layers keep tokens of their own", async () => {
  const chat = new Chat({ dtype: "float32" });
  chat.append(70);
  await new WebLLMEvictor(kv, chat.pipeline, { policy: "knorm:budget=24", rope }).evict();
  chat.keep(byNorm(24));
  assert.notDeepEqual(chat.tokens[0][0], chat.tokens[1][1]);
  chat.check();
});

test("several turns", async () => {
  const chat = new Chat();
  const evictor = new WebLLMEvictor(kv, chat.pipeline, { policy: "streaming-llm:budget=40", rope });
  for (const n of [30, 60, 1, 45]) {
    chat.append(n);
    const before = chat.tokens[0][0].length;
    const { evicted, nTokensBefore } = await evictor.evict();
    assert.deepEqual([nTokensBefore, evicted], [before, before > 40]);
    if (evicted) chat.keep(streaming(40));
    chat.check();
  }
  assert.equal(chat.nEvictions, 3);
});

test("keys without positions are not turned", async () => {
  const chat = new Chat({ dtype: "float32" }, false);
  chat.append(50);
  await new WebLLMEvictor(kv, chat.pipeline, { policy: "streaming-llm:budget=20", rope: null }).evict();
  chat.keep(streaming(20));
  chat.check();
});

test("the functions are called in web-llm's order", async () => {
  const chat = new Chat();
  chat.append(50);
  const evictor = new WebLLMEvictor(kv, chat.pipeline, { policy: "streaming-llm:budget=20", rope });
  await evictor.evict();
  const cache = (name) => `attention_kv_cache_${name}`;
  const of = (name) => new Array(shape.nLayers).fill(cache(name));
  assert.deepEqual(chat.pipeline.calls, [
    cache("get_checkpoint_metadata"), ...of("export_page_group"), "kv_state_clear",
    "kv_state_add_sequence", cache("prepare_import"), ...of("import_page_group"),
    cache("finish_import"), cache("get_sequence_length")]);
  chat.pipeline.calls.length = 0;
  await evictor.evict(); // within budget: nothing is imported
  assert.deepEqual(chat.pipeline.calls, [cache("get_checkpoint_metadata"), ...of("export_page_group")]);
});

test("an engine's model is evicted under its lock", async () => {
  const chat = new Chat();
  chat.append(50);
  const steps = [];
  const engine = {
    loadedModelIdToPipeline: new Map([["a", chat.pipeline], ["b", {}]]),
    loadedModelIdToLock: new Map([["a", {
      acquire: async () => { steps.push("acquire", chat.pipeline.calls.length); },
      release: async () => { steps.push("release"); } }]]),
  };
  const options = { policy: "streaming-llm:budget=20", rope };
  await new WebLLMEvictor(kv, engine, { ...options, modelId: "a" }).evict();
  assert.deepEqual(steps, ["acquire", 0, "release"]);
  await assert.rejects(new WebLLMEvictor(kv, engine, options).evict(), /loaded: a, b/);
  await assert.rejects(new WebLLMEvictor(kv, {}, options).evict(), /in a worker/);
});

test("a chat that was reset begins anew", async () => {
  const chat = new Chat();
  chat.append(90);
  const evictor = new WebLLMEvictor(kv, chat.pipeline, { policy: "streaming-llm:budget=40", rope });
  await evictor.evict();
  chat.pipeline.resetChat(true);
  chat.tokens = chat.tokens.map((heads) => heads.map(() => []));
  chat.append(35);
  assert.equal((await evictor.evict()).evicted, false);
  chat.append(30);
  await evictor.evict();
  chat.keep(streaming(40));
  chat.check();
});

test("what cannot be done is refused with the reason, and nothing changes", async () => {
  const chat = new Chat();
  chat.append(60);
  const evictor = (policy, pipeline = chat.pipeline) =>
    new WebLLMEvictor(kv, pipeline, { policy, rope });
  assert.throws(() => evictor("snapkv:budget=40"), /scores by queries, which web-llm does not/);
  assert.throws(() => new WebLLMEvictor(kv, chat.pipeline, { policy: "knorm:budget=20" }), /rope/);
  assert.throws(() => evictor("knorm:budget=0"), /budget="0"/);
  await assert.rejects(evictor("h2o:budget=40").evict(), /attention_sums|queries/);
  await assert.rejects(evictor("knorm:budget=24,split=geometric").evict(), /one length for all/);
  await assert.rejects(evictor("knorm:budget=24,heads=adaptive").evict(), /one length for all/);
  await assert.rejects(new WebLLMEvictor(kv, chat.pipeline, {
    policy: "knorm:budget=20", rope: { theta: 0 } }).evict(), /rope\.theta 0/);
  for (const [more, reason] of [
    [{ format_version: 2 }, /format_version 2, not 1/],
    [{ page_group_layout: "2,pages" }, /lie as 2,pages/],
    [{ v_head_dim: 4 }, /differs from v_head_dim 4/],
    [{ dtype: "int8" }, /elements are int8/],
    [{ attn_kinds: ["mha", "mla"] }, /attend as mha, mla/],
    [{ logical_pages: [] }, /0 pages hold/],
    [{ seq_length: 61.5 }, /seq_length is 61.5/],
  ]) {
    const other = new Chat({ more });
    other.append(60);
    await assert.rejects(evictor("knorm:budget=20", other.pipeline).evict(), reason);
    assert.ok(!other.pipeline.calls.includes("kv_state_clear"));
    assert.equal(other.pipeline.nScopes, 0);
  }
  const hybrid = new Chat();
  hybrid.pipeline.kvStateKind = "hybrid";
  await assert.rejects(evictor("knorm:budget=20", hybrid.pipeline).evict(), /state is hybrid/);
  const sliding = new Chat();
  sliding.append(40);
  sliding.pipeline.contextWindowSize = -1;
  await assert.rejects(evictor("knorm:budget=20", sliding.pipeline).evict(), /sliding window/);
  chat.check();
});

test("a failed export changes nothing, a failed import resets the chat", async () => {
  const chat = new Chat();
  chat.append(60);
  const evictor = new WebLLMEvictor(kv, chat.pipeline, { policy: "streaming-llm:budget=20", rope });
  chat.pipeline.failAt = "attention_kv_cache_export_page_group";
  await assert.rejects(evictor.evict(), /export_page_group fails/);
  chat.check();
  for (const name of ["prepare_import", "import_page_group", "finish_import"]) {
    const other = new Chat();
    other.append(60);
    other.pipeline.failAt = `attention_kv_cache_${name}`;
    const failing = new WebLLMEvictor(kv, other.pipeline, {
      policy: "streaming-llm:budget=20", rope });
    await assert.rejects(failing.evict(), /import of 20 tokens failed, and the chat is reset/);
    assert.deepEqual([other.pipeline.nResets, other.pipeline.filledKVCacheLength], [1, 0]);
    assert.equal(other.pipeline.nScopes, 0);
    other.pipeline.failAt = undefined;
    other.tokens = other.tokens.map((heads) => heads.map(() => []));
    other.append(30);
    await failing.evict();
    other.keep(streaming(20));
    other.check();
  }
  chat.pipeline.failAt = undefined;
  await evictor.evict();
  chat.keep(streaming(20));
  chat.check();
});

test("calls leave no memory behind", async () => {
  const one = async () => {
    const chat = new Chat();
    chat.append(60);
    const evictor = new WebLLMEvictor(kv, chat.pipeline, { policy: "streaming-llm:budget=20", rope });
    await evictor.evict();
    evictor.destroy();
  };
  for (let i = 0; i < 10; ++i) await one();
  const { memoryBytes } = kv;
  for (let i = 0; i < 200; ++i) await one();
  assert.ok(kv.memoryBytes - memoryBytes <= 2 ** 21, `${kv.memoryBytes - memoryBytes} bytes`);
});
