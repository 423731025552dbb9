// Paged caches and batches, held against contiguous caches and single calls.
import assert from "node:assert/strict";
import { test } from "node:test";

const { load, fullModule, BlockLayout, DType, KvevictError, headMajor, tokenMajor } =
  await import(process.env.KVEVICT_WEB);
const kv = await load();
const full = await load(fullModule);
const [L, H, D, MAX] = [2, 2, 8, 64];

const planOf = (core, policy, more = {}) =>
  core.context().plan({ nLayers: L, maxTokens: MAX,
                        layers: { nQHeads: H, nKvHeads: H, kHeadDim: D, vHeadDim: D, ...more } },
                      core.policy(policy));

function random(n, seed) {
  let state = seed;
  return Float32Array.from({ length: n }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  });
}
// K and V of a layer, [tokens, heads, elements].
const drawn = (n, seed) =>
  Array.from({ length: L }, (_, l) => ({ k: random(n * H * D, seed + 2 * l),
                                         v: random(n * H * D, seed + 2 * l + 1) }));
const rowsOf = (layers, firstSlot, nTokens) =>
  layers.map(({ k, v }, layer) => ({ layer, firstSlot, nTokens, k: tokenMajor(k, H, D),
                                     v: tokenMajor(v, H, D) }));

function filled(core, cache, plan, n, seed) {
  const layers = drawn(n, seed);
  const [cached, sequence] = [cache.sequence(), plan.sequence()];
  cached.append(n);
  cached.write(rowsOf(layers, 0, n));
  sequence.append(n);
  return { cached, sequence, layers };
}

function read(cached, n) {
  const layers = drawn(n, 1);
  cached.read(rowsOf(layers, 0, n));
  return layers;
}

for (const layout of [BlockLayout.HEAD_MAJOR, BlockLayout.TOKEN_MAJOR]) {
  test(`blocks, layout ${layout}, keep what a contiguous cache keeps`, () => {
    const plan = planOf(kv, "knorm:budget=12,sink=1");
    const cache = plan.pagedCache({ nBlocks: 20, blockSize: 4, layout });
    const { cached, sequence, layers } = filled(kv, cache, plan, 37, 5);
    assert.equal(cached.length(1), 37);
    assert.equal(cache.usage().nFree, cache.usage().nBlocks - 2 * 10);
    const whole = layers.map(({ k, v }) => ({ k: k.slice(), v: v.slice() }));
    const beside = plan.sequence();
    beside.append(37);
    beside.evict(whole.map(({ k, v }) => ({ nKvHeads: H, k: tokenMajor(k, H, D),
                                            v: tokenMajor(v, H, D) })));
    const report = cached.evict(sequence);
    assert.equal(report.evicted, 1);
    assert.equal(cached.length(0), 12);
    assert.equal(cache.usage().nFree, cache.usage().nBlocks - 2 * 3);
    const now = read(cached, 12);
    for (let layer = 0; layer < L; ++layer) {
      for (let head = 0; head < H; ++head) {
        assert.deepEqual(sequence.keepPositions(layer, head), beside.keepPositions(layer, head));
      }
      assert.deepEqual(now[layer].k, whole[layer].k.subarray(0, 12 * H * D));
      assert.deepEqual(now[layer].v, whole[layer].v.subarray(0, 12 * H * D));
    }
  });
}

test("a view of blocks serves the calls that take views", () => {
  const plan = planOf(kv, "knorm:budget=12,sink=1");
  const cache = plan.pagedCache({ nBlocks: 20, blockSize: 4 });
  const { cached, sequence } = filled(kv, cache, plan, 30, 9);
  const scores = new Float32Array(H * 30);
  plan.score({ layer: 1, nTokens: 30, nSeen: 30, view: cached.view(1), scores });
  const { layers } = filled(kv, cache, plan, 30, 9);
  const beside = new Float32Array(H * 30);
  plan.score({ layer: 1, nTokens: 30, nSeen: 30, scores: beside,
               view: { nKvHeads: H, k: tokenMajor(layers[1].k, H, D),
                       v: tokenMajor(layers[1].v, H, D) } });
  assert.deepEqual(scores, beside);
  assert.ok(new Set(scores).size > 30);
  sequence.evict([cached.view(0), cached.view(1)]);
  cached.fit(sequence);
  assert.equal(cached.length(1), 12);
});

test("forks share blocks until one of them changes", () => {
  const plan = planOf(kv, "knorm:budget=12,sink=1");
  const cache = plan.pagedCache({ nBlocks: 24, blockSize: 4 });
  const { cached, sequence, layers } = filled(kv, cache, plan, 20, 3);
  const fork = cached.fork();
  assert.equal(cache.usage().nShared, 2 * 5);
  assert.throws(() => cached.append(MAX), (error) => error instanceof KvevictError);
  cached.evict(sequence);
  assert.deepEqual(read(fork, 20), layers);
  fork.own();
  assert.equal(cache.usage().nShared, 0);
  fork.truncate(3);
  assert.equal(fork.length(0), 3);
  for (const one of [fork, cached, fork]) one.destroy();
  assert.equal(cache.usage().nFree, cache.usage().nBlocks);
  assert.equal(cache.usage().nSequences, 0);
});

test("too few blocks: the message has both numbers, and nothing changes", () => {
  const plan = planOf(kv, "knorm:budget=12,sink=1");
  const cache = plan.pagedCache({ nBlocks: 3, blockSize: 4 });
  const cached = cache.sequence();
  cached.append(12);
  assert.throws(() => cached.append(20), (error) => {
    assert.equal(error.statusName, "OUT_OF_MEMORY");
    assert.match(error.message, /needs 10 blocks .* 0 of 6 are free/);
    return true;
  });
  assert.equal(cached.length(0), 12);
});

test("a cache lies in memory of the caller's, and has the size that was told", () => {
  const plan = planOf(kv, "knorm:budget=12,sink=1");
  const options = { nBlocks: 4, blockSize: 16 };
  const bytes = plan.pagedCacheBytes(options);
  assert.equal(bytes, 2 * L * H * D * 4 * 64);
  const room = kv.allocate(bytes + 256);
  const memory = room.at((256 - room.address % 256) % 256);
  const cache = plan.pagedCache({ ...options, memory, memoryBytes: bytes });
  const { cached, layers } = filled(kv, cache, plan, 5, 8);
  const { data } = cached.view(0).k;
  assert.ok(data >= memory.address && data < memory.address + bytes);
  assert.deepEqual(read(cached, 5), layers);
  cached.destroy();
  cache.destroy();
  room.free();
});

test("quantized blocks give rows back within half a step", () => {
  const plan = planOf(full, "streaming-llm:budget=12,sink=4", { kDtype: DType.U8, vDtype: DType.U8 });
  const cache = plan.pagedCache({ nBlocks: 20, blockSize: 4, numberDtype: DType.F16 });
  const { cached, sequence, layers } = filled(full, cache, plan, 30, 4);
  cached.evict(sequence);
  const now = read(cached, 12);
  const positions = sequence.keepPositions(1, 0);
  // Rows lie in [-1, 1): a step is at most 2 / 255, and f16 rounds scale and minimum to 2^-11
  // of them.
  const bound = 1 / 255 + 2 * 2 ** -11 + 2 ** -11;
  now[1].k.forEach((x, i) => {
    const slot = Math.floor(i / (H * D));
    const was = layers[1].k[positions[slot] * H * D + i % (H * D)];
    assert.ok(Math.abs(x - was) <= bound, `${x} for ${was}`);
  });
  assert.ok(now[1].k.some((x, i) => x !== layers[1].k[i]));
});

test("a batch does what single calls do, or nothing", () => {
  const plan = planOf(kv, "knorm:budget=12,sink=1");
  const lengths = [20, 33, 40];
  const caches = lengths.map((_, i) => drawn(MAX, 20 + i));
  const views = (layers) => layers.map(({ k, v }) => ({ nKvHeads: H, k: headMajor(k, MAX, D),
                                                        v: headMajor(v, MAX, D) }));
  const single = caches.map((layers, i) => {
    const copy = layers.map(({ k, v }) => ({ k: k.slice(), v: v.slice() }));
    const sequence = plan.sequence();
    sequence.append(lengths[i]);
    sequence.trimTo(lengths[i] - 2);
    sequence.evict(views(copy));
    return { copy, sequence };
  });
  const sequences = lengths.map(() => plan.sequence());
  kv.sequencesAppend(sequences.map((sequence, i) => ({ sequence, nTokens: lengths[i] })));
  kv.sequencesTrimTo(sequences.map((sequence, i) => ({ sequence, newLength: lengths[i] - 2 })));
  assert.throws(() => kv.sequencesTrimTo([{ sequence: sequences[0], newLength: 4 },
                                          { sequence: sequences[1], newLength: 60 }]),
                /items\[1\]/);
  assert.equal(sequences[0].logicalLength, 18);
  const reports = kv.sequencesEvict(sequences.map((sequence, i) =>
    ({ sequence, views: views(caches[i]) })));
  assert.deepEqual(reports, single.map(({ sequence }) => sequence.report()));
  sequences.forEach((sequence, i) => {
    assert.deepEqual(sequence.keepPositions(1, 1), single[i].sequence.keepPositions(1, 1));
    assert.deepEqual(caches[i], single[i].copy);
  });
});

test("a batch of observations is one observation each", () => {
  const plan = planOf(kv, "snapkv:budget=12,window=4,sink=1");
  const [layers, queries] = [drawn(30, 2), random(30 * H * D, 11)];
  const evict = (observe) => {
    const sequence = plan.sequence().beginObserving();
    observe(sequence, Array.from({ length: L }, (_, layer) =>
      ({ layer, inputs: { queries: tokenMajor(queries, H, D) } })));
    sequence.append(30);
    sequence.evict(layers.map(({ k, v }) => ({ nKvHeads: H, k: tokenMajor(k.slice(), H, D),
                                               v: tokenMajor(v.slice(), H, D) })));
    return Array.from(sequence.keepPositions(1, 1));
  };
  const one = evict((sequence, observations) => sequence.observe(observations, 30));
  const all = evict((sequence, observations) =>
    kv.sequencesObserve([{ sequence, observations, nRows: 30 }]));
  assert.deepEqual(all, one);
  assert.equal(all.length, 12);
});

test("a fork may have another plan", () => {
  const plan = planOf(kv, "knorm:budget=12,sink=1");
  const context = kv.context();
  const layers = { nQHeads: H, nKvHeads: H, kHeadDim: D, vHeadDim: D };
  const of = (policy) => context.plan({ nLayers: L, maxTokens: MAX, layers }, kv.policy(policy));
  const sequence = of("knorm:budget=12,sink=1").sequence();
  sequence.append(30);
  const other = of("streaming-llm:budget=10,sink=2");
  const fork = sequence.fork({ plan: other });
  assert.equal(fork.plan, other);
  assert.equal(fork.logicalLength, 30);
  assert.throws(() => sequence.fork({ plan }), /context/);
  other.destroy();
  assert.throws(() => sequence.fork({ plan: other }), /this Plan has been destroyed/);
});
