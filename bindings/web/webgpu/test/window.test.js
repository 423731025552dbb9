import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Operations } from '../operations.js';
import { LAYOUTS, makeCache, makePlane, random } from './draw.js';
import { makeBuffer, makeDevice, readBuffer, submit } from './gpu.js';
import * as oracle from './oracle.js';

const device = await makeDevice();
const operations = new Operations(device);

async function check(o) {
  const {
    nTokens,
    window,
    nQHeads = 4,
    nKvHeads = nQHeads / 2,
    dim = 64,
    dtype = 'f32',
    layout = 'head-major',
    seed,
    rows = 'mean',
    group = 'mean',
    perQueryHead = false,
    softcap = 0,
    scale = 1 / Math.sqrt(dim),
    queryType = 'f32',
    key,
    query,
    nScored = nTokens,
    firstQuery = 0,
  } = o;
  const cache = makeCache(device, { seed, nHeads: nKvHeads, nSlots: nTokens, kDim: dim, dtype, layout, key });
  const draw = random(seed + 1);
  // A ring may have rows before the window's own.
  const shown = makePlane(device, {
    value: query ?? (() => draw() * 4 - 2),
    nHeads: nQHeads,
    nSlots: firstQuery + window,
    dim,
    dtype: queryType,
    layout: ['padded', 'aligned'].includes(layout) ? layout : 'token-major',
  });
  const nRows = perQueryHead ? nQHeads : nKvHeads;
  const stride = nScored + 5;
  const out = makeBuffer(device, new Float32Array(3 + nRows * stride).fill(-7));
  submit(device, (encoder) =>
    operations.encodeWindowScores(encoder, {
      view: cache.view,
      nTokens,
      queries: shown.plane,
      nQHeads,
      window,
      scale,
      softcap,
      rows,
      group,
      perQueryHead,
      nScored,
      firstQuery,
      scores: { buffer: out, offset: 12, stride },
    }),
  );
  const got = await readBuffer(device, out, Float32Array);
  const queries = new Float64Array(nQHeads * window * dim);
  for (let h = 0; h < nQHeads; h++) {
    const first = (h * (firstQuery + window) + firstQuery) * dim;
    queries.set(shown.values.subarray(first, first + window * dim), h * window * dim);
  }
  const perHead = oracle.windowScores({
    keys: cache.k.values,
    queries,
    nKvHeads,
    nQHeads,
    nTokens,
    window,
    dim,
    scale,
    softcap,
    rows,
  });
  const want = perQueryHead
    ? perHead
    : oracle.reduceRows(perHead, nQHeads / nKvHeads, nTokens, group);
  // A logit is a sum of dim products below 4 in f32, in sums of at most dim terms:
  // its error is below dim * 2^-24 * (sum of |products|) * scale. The exponential
  // and the sums of positive terms add some 2^-20.
  const tolerance = dim * 2 ** -24 * 4 * dim * scale + 2 ** -19;
  let worst = 0;
  for (let r = 0; r < nRows; r++) {
    for (let j = 0; j < nScored; j++) {
      const [a, b] = [got[3 + r * stride + j], want[r * nTokens + j]];
      if (Number.isNaN(b) || Number.isNaN(a)) {
        assert.ok(
          Number.isNaN(a) && Number.isNaN(b),
          `row ${r} slot ${j}: ${a}, not ${b} ${JSON.stringify(o)}`,
        );
      } else {
        // Weights below 2^-126 may be flushed to 0.
        worst = Math.max(worst, Math.abs(a - b) / Math.max(b, 1e-37));
      }
    }
    // Nothing is written behind the row.
    assert.equal(got[3 + r * stride + nScored], -7);
  }
  assert.ok(worst <= tolerance, `relative error ${worst} > ${tolerance}: ${JSON.stringify(o)}`);
}

test('weights are the softmax of the window', async () => {
  let seed = 1;
  for (const nTokens of [1, 2, 33, 127, 128, 129, 600, 1025]) {
    for (const window of [1, 3, 8, 32]) {
      if (window > nTokens) continue;
      await check({ seed: seed++, nTokens, window });
    }
  }
});

test('in every layout and dtype, for odd head sizes and groups', async () => {
  const shapes = [
    ['f32', 'f32', 64, 3, 3],
    ['f16', 'f16', 64, 8, 2],
    ['f16', 'f32', 66, 4, 1],
    ['f32', 'f16', 98, 2, 2],
    ['f32', 'f32', 67, 4, 2],
    ['f16', 'f16', 128, 8, 1],
    ['f32', 'f32', 256, 2, 1],
    ['f16', 'f32', 2, 2, 2],
  ];
  for (const [i, [dtype, queryType, dim, nQHeads, nKvHeads]] of shapes.entries()) {
    for (const layout of [LAYOUTS[i % 6], LAYOUTS[(i + 2) % 6]]) {
      const seed = 100 + i;
      await check({
        seed,
        nTokens: 150,
        window: 11,
        nQHeads,
        nKvHeads,
        dim,
        dtype,
        queryType,
        layout,
        firstQuery: i % 3,
      });
    }
  }
});

test('rows of the whole context see only what comes before them', async () => {
  for (const nTokens of [7, 129, 300]) {
    await check({ seed: nTokens, nTokens, window: nTokens, nQHeads: 2, rows: 'sum' });
  }
});

test('over 5,000 tokens, in pieces', async () => {
  await check({ seed: 7, nTokens: 5000, window: 16, nScored: 4984 });
  await check({
    seed: 8,
    nTokens: 4097,
    window: 5,
    nQHeads: 2,
    dim: 128,
    dtype: 'f16',
    layout: 'paged',
  });
});

test('rows and heads reduce by mean, maximum and sum', async () => {
  let seed = 200;
  for (const rows of ['mean', 'max', 'sum']) {
    for (const group of ['mean', 'max', 'sum']) {
      for (const perQueryHead of [false, true]) {
        await check({
          seed: seed++,
          nTokens: 200,
          window: 9,
          nQHeads: 6,
          rows,
          group,
          perQueryHead,
          nKvHeads: 2,
        });
      }
    }
  }
});

test('logits are scaled and capped', async () => {
  await check({ seed: 300, nTokens: 300, window: 8, nQHeads: 2, scale: 0.3 });
  await check({ seed: 301, nTokens: 300, window: 8, nQHeads: 2, softcap: 2 });
  await check({ seed: 302, nTokens: 300, window: 8, nQHeads: 2, scale: 0.25, softcap: 50 });
});

test('NaN and infinity do what the formula says', async () => {
  for (const bad of [NaN, Infinity, -Infinity]) {
    for (const [head, slot] of [[0, 0], [1, 70], [0, 95], [1, 99]]) {
      const draw = random(slot);
      const key = (h, s, i) => (h === head && s === slot && i === 5 ? bad : draw() * 4 - 2);
      for (const dtype of ['f32', 'f16']) {
        await check({ seed: 400, nTokens: 100, window: 7, dtype, key });
      }
      const query = (h, s, i) => (h === 2 && s === 3 && i === 9 ? bad : draw() * 4 - 2);
      await check({ seed: 401, nTokens: 100, window: 7, query, perQueryHead: slot > 90 });
    }
  }
});

test('a logit of -infinity has no weight', async () => {
  // One element that is positive in every query makes the logits of one key so.
  const draw = random(9);
  const query = (h, s, i) => (i === 0 ? 1 : draw() * 4 - 2);
  for (const slots of [[20], [0, 63, 64, 90]]) {
    const key = (h, s, i) => (i === 0 ? (slots.includes(s) ? -Infinity : 1) : draw() * 4 - 2);
    await check({ seed: 500, nTokens: 91, window: 5, query, key });
    await check({ seed: 500, nTokens: 91, window: 5, query, key, softcap: 3 });
  }
  const all = (h, s, i) => (i === 0 ? -Infinity : 1);
  await check({ seed: 501, nTokens: 40, window: 5, query, key: all });
});

test('great logits neither overflow nor lose weight', async () => {
  // One key far above the others, in the first piece of three.
  const above = (h, s, i) => (s === 3 ? 5 : ((s * 7 + i) % 5) - 2);
  await check({
    seed: 602,
    nTokens: 2100,
    window: 8,
    nQHeads: 2,
    key: above,
    query: () => 3,
    scale: 1,
  });
  const draw = random(11);
  const key = (h, s) => (s % 17 === 3 ? 40 : draw() * 2 - 1);
  const query = () => 3;
  // Integers: all products and sums are exact.
  const exact = (h, s, i) => ((s * 7 + i) % 5) - 2;
  await check({ seed: 600, nTokens: 300, window: 8, nQHeads: 2, key: exact, query, scale: 1 });
  await check({ seed: 601, nTokens: 300, window: 8, nQHeads: 2, key, query, scale: 2 ** -8 });
});
