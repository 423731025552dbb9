// Whole evictions, against the native library: the same keep lists for the same
// scores, the same bytes for the same lists.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { createEvictor } from '../index.js';
import { fromHalf, LAYOUTS, makeCache, makePlane, random, toHalf } from './draw.js';
import { makeBuffer, makeDevice, readBuffer, submit } from './gpu.js';

const device = await makeDevice();
const plain = await makeDevice({ subgroups: false });
const native = process.env.KVEVICT_NATIVE;
const skip =
  native === undefined && 'KVEVICT_NATIVE names no program: ninja kvevict_webgpu_native builds it';

// The text form of a policy: the keys of an object in the native spelling.
const KEYS = { keepWindow: 'keep_window' };
function textOf({ kind, ...parameters }) {
  const words = Object.entries(parameters).map(([key, value]) => {
    const word = typeof value === 'boolean' ? (value ? 'yes' : 'no') : value;
    return `${KEYS[key] ?? key}=${word}`;
  });
  return `${kind}:${words.join()}`;
}

const windowOf = ({ kind, window }, o) =>
  kind === 'h2o' ? o.nSlots : (window ?? (kind === 'tova' ? 1 : 32));

function pack(values, dtype) {
  return dtype === 'f32' ? Float32Array.from(values) : Uint16Array.from(values, toHalf);
}

function runNative(verb, policy, o, cache, queries, scores, invFreq) {
  const parts = [
    pack(cache.k.values, o.dtype),
    pack(cache.v.values, o.dtype),
    queries,
    scores,
    invFreq,
  ].map((a) =>
    a === undefined ? Buffer.alloc(0) : Buffer.from(a.buffer, a.byteOffset, a.byteLength),
  );
  const run = spawnSync(
    native,
    [
      verb,
      textOf(policy),
      o.nQHeads,
      o.nHeads,
      o.kDim,
      o.vDim,
      o.dtype,
      o.nSlots,
      queries === undefined ? 0 : windowOf(policy, o),
      scores === undefined ? 'none' : policy.kind === 'h2o' ? 'sums' : 'scores',
      invFreq?.length ?? 0,
      o.rope ?? 'half',
    ].map(String),
    { input: Buffer.concat(parts), maxBuffer: 2 ** 28 },
  );
  assert.equal(run.status, 0, run.stderr.toString());
  return new Uint8Array(run.stdout).buffer;
}

// A cache whose values tell their slot, so that V tells what was kept.
function drawCache(on, o) {
  const item = (h, s, i) =>
    i === 0 ? s % 1024 : i === 1 ? Math.floor(s / 1024) : ((h + s * 3 + i) % 64) - 32;
  return makeCache(on, { ...o, item });
}

function keptOf(rows, o, head, n) {
  return Array.from({ length: n }, (_, i) => {
    const at = (head * o.nSlots + i) * o.vDim;
    return rows[at] + 1024 * rows[at + 1];
  });
}

function rowsOf(bytes, plane, o, dim) {
  const size = o.dtype === 'f32' ? 4 : 2;
  const data = new DataView(bytes.buffer);
  const out = new Float64Array(o.nHeads * o.nSlots * dim);
  for (let h = 0; h < o.nHeads; h++) {
    for (let s = 0; s < o.nSlots; s++) {
      for (let i = 0; i < dim; i++) {
        const at = plane.addressOf(h, s) + i * size;
        out[(h * o.nSlots + s) * dim + i] =
          size === 4 ? data.getFloat32(at, true) : fromHalf(data.getUint16(at, true));
      }
    }
  }
  return out;
}

/**
 * Evicts on the GPU and natively.
 * @returns kept slots of each head, and K's rows, of both.
 */
async function evictBoth(o, policy, { scores, on = device } = {}) {
  const draw = random(o.seed + 7);
  const cache = drawCache(on, o);
  const needsQueries =
    ['snapkv', 'pyramidkv', 'tova', 'h2o'].includes(policy.kind) && scores === undefined;
  const shown = needsQueries
    ? makePlane(on, {
        value: () => draw() * 4 - 2,
        nHeads: o.nQHeads,
        nSlots: windowOf(policy, o),
        dim: o.kDim,
        dtype: 'f32',
        layout: 'head-major',
      })
    : undefined;
  const rope = policy.rotate
    ? {
        invFreq: Float32Array.from({ length: o.kDim / 2 }, (_, f) => 10000 ** ((-2 * f) / o.kDim)),
        layout: o.rope ?? 'half',
      }
    : undefined;
  const evictor = createEvictor(on, {
    shape: {
      nQHeads: o.nQHeads,
      nKvHeads: o.nHeads,
      kHeadDim: o.kDim,
      vHeadDim: o.vDim,
      dtype: o.dtype,
      maxTokens: o.nSlots + 10,
    },
    policy,
    rope,
  });
  let result;
  submit(on, (encoder) => {
    result = evictor.encode(encoder, {
      view: cache.view,
      nTokens: o.nSlots,
      ...(needsQueries ? { queries: shown.plane } : {}),
      ...(scores ? { scores: { buffer: makeBuffer(on, scores) } } : {}),
    });
  });
  const kBytes = await readBuffer(on, cache.view.k.buffer, Uint8Array);
  const vBytes = await readBuffer(on, cache.view.v.buffer, Uint8Array);
  const gpu = { k: rowsOf(kBytes, cache.k, o, o.kDim), v: rowsOf(vBytes, cache.v, o, o.vDim) };
  const queries = needsQueries ? Float32Array.from(shown.values) : undefined;
  const out = runNative('evict', policy, o, cache, queries, scores, rope?.invFreq);
  const [left] = new Uint32Array(out.slice(0, 4));
  assert.equal(result.nTokens, left, 'slots left');
  const Type = o.dtype === 'f32' ? Float32Array : Uint16Array;
  const elements = Array.from(new Type(out.slice(4)), o.dtype === 'f32' ? (x) => x : fromHalf);
  const kLength = o.nHeads * o.nSlots * o.kDim;
  const want = { k: elements.slice(0, kLength), v: elements.slice(kLength) };
  if (result.evicted) {
    // The keep lists say what was kept.
    const lists = await readBuffer(on, result.keep.buffer, Uint32Array);
    for (let h = 0; h < o.nHeads; h++) {
      const first =
        result.keep.offset / 4 + (result.keep.nLists === 1 ? 0 : h) * result.keep.stride;
      assert.deepEqual(Array.from(lists.subarray(first, first + left)), keptOf(gpu.v, o, h, left));
    }
  }
  evictor.destroy();
  return { left, gpu, want, cache, queries, result };
}

// K's and V's rows of the survivors are the same.
function sameRows({ left, gpu, want }, o, what) {
  for (const [plane, dim] of [['k', o.kDim], ['v', o.vDim]]) {
    for (let h = 0; h < o.nHeads; h++) {
      const first = h * o.nSlots * dim;
      assert.deepEqual(
        Array.from(gpu[plane].subarray(first, first + left * dim)),
        want[plane].slice(first, first + left * dim),
        `${what} ${plane} of head ${h}`,
      );
    }
  }
}

const SPECIAL = [NaN, Infinity, -Infinity, 0, -0, 1, 1, 0.5, 0.5, -1, 2];
const BASE = {
  nQHeads: 4,
  nHeads: 2,
  kDim: 64,
  vDim: 64,
  dtype: 'f32',
  layout: 'head-major',
  nSlots: 300,
  seed: 1,
};

test('given scores, keep lists and bytes are those of the native library', { skip }, async () => {
  const draw = random(3);
  let i = 0;
  for (const policy of [
    { kind: 'custom', budget: 100 },
    { kind: 'custom', budget: 4, recent: 0 },
    { kind: 'custom', budget: 37, recent: 33, tie: 'higher' },
    { kind: 'custom', budget: 120, pool: 'max7', sink: 0 },
    {
      kind: 'custom',
      budget: 120,
      pool: 'max3',
      sink: 1,
      tie: 'higher',
      scope: 'layer',
      over: 'max',
    },
    { kind: 'custom', budget: 299, sink: 2 },
    { kind: 'h2o', budget: 100, pool: 'max5', order: 'pool-reduce' },
    { kind: 'custom', budget: 300 },
  ]) {
    for (const values of [SPECIAL, [1], [NaN], Array.from({ length: 500 }, () => draw())]) {
      for (const nHeads of [1, 2]) {
        const o = {
          ...BASE,
          nHeads,
          dtype: i % 2 ? 'f16' : 'f32',
          layout: LAYOUTS[i % 6],
          vDim: i % 3 ? 64 : 70,
          seed: i++,
        };
        const scores = Float32Array.from(
          { length: nHeads * o.nSlots },
          () => values[Math.floor(draw() * values.length)],
        );
        sameRows(
          await evictBoth(o, policy, { scores, on: i % 2 ? device : plain }),
          o,
          JSON.stringify({ policy, o }),
        );
      }
    }
  }
});

test('streaming-llm keeps sinks and the last tokens', { skip }, async () => {
  for (const [i, budget] of [5, 100, 299, 300].entries()) {
    const o = { ...BASE, seed: 40 + i, layout: LAYOUTS[i] };
    sameRows(await evictBoth(o, { kind: 'streaming-llm', budget, sink: 4 }), o, `budget ${budget}`);
  }
});

test('keys turned to their slots are those of the native library', { skip }, async () => {
  for (const [i, rope] of ['half', 'interleaved', 'half'].entries()) {
    const dtype = i === 2 ? 'f16' : 'f32';
    const o = { ...BASE, seed: 60 + i, rope, dtype, layout: LAYOUTS[i] };
    const both = await evictBoth(o, { kind: 'streaming-llm', budget: 50, sink: 4, rotate: true });
    for (let h = 0; h < o.nHeads; h++) {
      for (let at = h * o.nSlots * o.kDim; at < (h * o.nSlots + both.left) * o.kDim; at++) {
        const [a, b] = [both.gpu.k[at], both.want.k[at]];
        // Both err by some 1e-7; f16 then rounds, to neighbours at worst.
        const tolerance = dtype === 'f32' ? 8e-7 : 2 ** -10 * Math.max(Math.abs(b), 2 ** -14);
        assert.ok(Math.abs(a - b) <= tolerance, `${rope} ${dtype} ${at}: ${a}, not ${b}`);
      }
    }
  }
});

const POLICIES = [
  { kind: 'snapkv', budget: 100 },
  {
    kind: 'snapkv',
    budget: 40,
    window: 7,
    pool: 'max5',
    order: 'pool-reduce',
    group: 'max',
    rows: 'sum',
  },
  {
    kind: 'snapkv',
    budget: 90,
    window: 16,
    pool: 'avg5',
    order: 'pool-reduce',
    edge: 'shrink',
    sink: 0,
    recent: 20,
  },
  { kind: 'snapkv', budget: 90, window: 16, keepWindow: false, rows: 'max', tie: 'higher' },
  { kind: 'pyramidkv', budget: 64, window: 8 },
  { kind: 'tova', budget: 80 },
  { kind: 'snapkv', budget: 60, window: 9, pool: 'none' },
  { kind: 'h2o', budget: 80 },
  { kind: 'h2o', budget: 80, recent: 5, group: 'max', pool: 'max3', order: 'pool-reduce' },
  { kind: 'knorm', budget: 80 },
  { kind: 'keydiff', budget: 80, pool: 'avg3', recent: 9 },
  { kind: 'lagkv', budget: 80, block: 32, ranks: false },
  { kind: 'knorm', budget: 80, scope: 'layer', over: 'sum' },
];

test('every policy keeps what the native library keeps', { skip }, async () => {
  for (const [i, policy] of POLICIES.entries()) {
    const o = {
      ...BASE,
      seed: 80 + i,
      layout: LAYOUTS[i % 6],
      dtype: i % 2 ? 'f16' : 'f32',
      nQHeads: i % 3 ? 4 : 2,
    };
    const both = await evictBoth(o, policy);
    const scores = new Float32Array(runNative('score', policy, o, both.cache, both.queries));
    for (let h = 0; h < o.nHeads; h++) {
      const got = keptOf(both.gpu.v, o, h, both.left);
      const want = keptOf(both.want.v, o, h, both.left);
      // Where the lists differ, scores are equal but for their rounding.
      const row = scores.subarray(h * o.nSlots, (h + 1) * o.nSlots);
      const added = got.filter((slot) => !want.includes(slot));
      const lost = want.filter((slot) => !got.includes(slot));
      assert.equal(added.length, lost.length);
      assert.ok(
        added.length <= 1,
        `${JSON.stringify(policy)} head ${h}: ${added} in place of ${lost}`,
      );
      added.forEach((slot, n) => {
        assert.ok(
          Math.abs(row[slot] - row[lost[n]]) <= 1e-5 * Math.abs(row[lost[n]]),
          `${JSON.stringify(policy)} head ${h}: ${slot} ${row[slot]} in place of ${lost[n]} ${row[lost[n]]}`,
        );
      });
    }
  }
});

test('layers, evictions and passes of an engine share one encoder', async () => {
  const o = { ...BASE, seed: 200 };
  const caches = [0, 1, 2].map((l) => drawCache(device, { ...o, seed: 200 + l }));
  const alone = [];
  const evictor = createEvictor(device, {
    shape: { nQHeads: 4, nKvHeads: 2, kHeadDim: 64, maxTokens: 300 },
    policy: { kind: 'keydiff', budget: 60 },
  });
  for (const cache of caches) {
    const copy = makeBuffer(device, cache.k.bytes);
    const view = {
      ...cache.view,
      k: { ...cache.view.k, buffer: copy },
      v: { ...cache.view.v, buffer: makeBuffer(device, cache.v.bytes) },
    };
    submit(device, (encoder) => evictor.encode(encoder, { view, nTokens: 300 }));
    alone.push(await readBuffer(device, copy, Uint8Array));
  }
  const results = [];
  submit(device, (encoder) => {
    evictor.encode(encoder, { view: caches[0].view, nTokens: 300 });
    const pass = encoder.beginComputePass();
    for (const cache of caches.slice(1))
      results.push(evictor.encode(pass, { view: cache.view, nTokens: 300 }));
    pass.end();
  });
  for (const [l, cache] of caches.entries()) {
    assert.deepEqual(await readBuffer(device, cache.view.k.buffer, Uint8Array), alone[l]);
  }
  assert.deepEqual(results.map((r) => r.nTokens), [60, 60]);
});

test('a layer within its budget is left alone, with the reason', () => {
  const evictor = createEvictor(device, {
    shape: { nKvHeads: 2, kHeadDim: 64, maxTokens: 300 },
    policy: { kind: 'knorm', budget: 60 },
  });
  const cache = drawCache(device, BASE);
  const encoder = device.createCommandEncoder();
  assert.deepEqual(evictor.encode(encoder, { view: cache.view, nTokens: 60 }), {
    evicted: false,
    nTokens: 60,
    reason: 'within budget',
  });
  assert.deepEqual(evictor.encode(encoder, { view: cache.view, nTokens: 0 }), {
    evicted: false,
    nTokens: 0,
    reason: 'within budget',
  });
  const none = createEvictor(device, {
    shape: { nKvHeads: 2, kHeadDim: 64, maxTokens: 300 },
    policy: { kind: 'none' },
  });
  assert.equal(none.encode(encoder, { view: cache.view, nTokens: 300 }).evicted, false);
});
