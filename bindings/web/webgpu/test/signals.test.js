import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Operations } from '../operations.js';
import { LAYOUTS, makeCache, random } from './draw.js';
import { makeBuffer, makeDevice, readBuffer, submit } from './gpu.js';
import * as oracle from './oracle.js';

const device = await makeDevice();
const operations = new Operations(device);

const SHAPES = [
  { dtype: 'f32', kDim: 64, vDim: 96, nHeads: 3 },
  { dtype: 'f16', kDim: 64, vDim: 128, nHeads: 2 },
  { dtype: 'f16', kDim: 70, vDim: 66, nHeads: 2 },
  { dtype: 'f32', kDim: 67, vDim: 65, nHeads: 1 },
  { dtype: 'f32', kDim: 256, vDim: 256, nHeads: 1 },
];

/** Rows of a head as arrays. */
function rowsOf(plane, head, nSlots, dim) {
  return Array.from({ length: nSlots }, (_, s) =>
    Array.from(plane.values.subarray((head * nSlots + s) * dim, (head * nSlots + s + 1) * dim)),
  );
}

/** Scores [heads][slots], after a look at what lies around them. */
async function score(method, cache, nHeads, nSlots, more = {}) {
  const stride = nSlots + 2;
  const out = makeBuffer(device, new Float32Array(1 + nHeads * stride).fill(-7));
  submit(device, (encoder) =>
    operations[method](encoder, {
      view: cache.view,
      nTokens: nSlots,
      scores: { buffer: out, offset: 4, stride },
      ...more,
    }),
  );
  const got = await readBuffer(device, out, Float32Array);
  return Array.from({ length: nHeads }, (_, h) => {
    assert.equal(got[1 + h * stride + nSlots], -7);
    return Array.from(got.subarray(1 + h * stride, 1 + h * stride + nSlots));
  });
}

function near(got, want, tolerance, what) {
  assert.equal(got.length, want.length);
  got.forEach((x, i) => {
    const same =
      Object.is(x, want[i]) ||
      (Number.isNaN(x) && Number.isNaN(want[i])) ||
      Math.abs(x - want[i]) <= tolerance(want[i], i);
    assert.ok(same, `${what} slot ${i}: ${x}, not ${want[i]}`);
  });
}

// Each shape in two layouts, and some lengths around those of workgroups.
function* cases(lengths) {
  let seed = 1;
  for (const [i, shape] of SHAPES.entries()) {
    for (const layout of [LAYOUTS[i % 6], LAYOUTS[(i + 3) % 6]]) {
      for (const nSlots of lengths) yield { ...shape, layout, nSlots, seed: seed++ };
    }
  }
}

// A few elements are NaN or infinite.
function spoiltKeys(seed, every) {
  const draw = random(seed);
  return () =>
    draw() * every < 1 ? [NaN, Infinity, -Infinity][Math.floor(draw() * 3)] : draw() * 4 - 2;
}

test('knorm is minus the norm', async () => {
  for (const o of cases([1, 65, 257])) {
    const cache = makeCache(device, o);
    const got = await score('encodeKeyNorms', cache, o.nHeads, o.nSlots);
    got.forEach((row, h) => {
      // Sums of dim positive terms, and a square root.
      const tolerance = (x) => Math.abs(x) * (o.kDim + 8) * 2 ** -24;
      near(
        row,
        oracle.keyNorms(rowsOf(cache.k, h, o.nSlots, o.kDim)),
        tolerance,
        JSON.stringify(o),
      );
    });
  }
});

test('knorm of NaN is NaN, of infinity and of what overflows -infinity', async () => {
  const key = (h, s, i) =>
    i === 3
      ? [NaN, Infinity, -Infinity, 3e38, 1][s % 5]
      : s === 9 && i === 4
        ? NaN
        : i === 4
          ? Infinity
          : 0;
  const cache = makeCache(device, { nHeads: 1, nSlots: 10, key });
  const [row] = await score('encodeKeyNorms', cache, 1, 10);
  near(
    row,
    [NaN, ...Array(4).fill(-Infinity), NaN, ...Array(3).fill(-Infinity), NaN],
    () => 0,
    'knorm',
  );
});

test('keydiff is minus the cosine with the mean direction', async () => {
  for (const o of cases([1, 65, 256, 600])) {
    const cache = makeCache(device, o);
    const got = await score('encodeKeyDiffs', cache, o.nHeads, o.nSlots);
    got.forEach((row, h) => {
      const rows = rowsOf(cache.k, h, o.nSlots, o.kDim);
      // The mean of random directions has a length of some n^-1/2; its error is
      // of the size of one direction's, which the division magnifies.
      const tolerance = () => 4 * (o.kDim + 32) * 2 ** -24 * Math.max(1, Math.sqrt(o.nSlots) / 8);
      near(row, oracle.keyDiffs(rows), tolerance, JSON.stringify(o));
    });
  }
});

test('keydiff over 5,000 tokens, and keys with NaN or infinity in none but their own', async () => {
  for (const o of [
    { ...SHAPES[0], nSlots: 5000, layout: 'paged', seed: 50 },
    { ...SHAPES[1], nSlots: 700, layout: 'head-major', seed: 51, key: spoiltKeys(51, 2000) },
    { ...SHAPES[0], nSlots: 700, layout: 'paged-heads', seed: 52, key: spoiltKeys(52, 500) },
    { ...SHAPES[0], nSlots: 70, layout: 'token-major', seed: 53, key: () => NaN },
    { ...SHAPES[0], nSlots: 70, layout: 'token-major', seed: 54, key: () => 0 },
  ]) {
    const cache = makeCache(device, o);
    const got = await score('encodeKeyDiffs', cache, o.nHeads, o.nSlots);
    got.forEach((row, h) => {
      const tolerance = () => 4 * (o.kDim + 32) * 2 ** -24 * Math.sqrt(o.nSlots);
      near(row, oracle.keyDiffs(rowsOf(cache.k, h, o.nSlots, o.kDim)), tolerance, `seed ${o.seed}`);
    });
  }
});

const LAGS = [
  { nSlots: 1, sink: 4, block: 8 },
  { nSlots: 19, sink: 4, block: 8 },
  { nSlots: 20, sink: 4, block: 8 },
  { nSlots: 300, sink: 0, block: 64 },
  { nSlots: 300, sink: 9, block: 2 },
  { nSlots: 520, sink: 4, block: 129 },
];

async function checkLag(o) {
  const cache = makeCache(device, o);
  const got = await score('encodeLagScores', cache, o.nHeads, o.nSlots, {
    sink: o.sink,
    block: o.block,
    ranks: false,
  });
  const ranked = await score('encodeLagScores', cache, o.nHeads, o.nSlots, {
    sink: o.sink,
    block: o.block,
  });
  got.forEach((row, h) => {
    const keys = rowsOf(cache.k, h, o.nSlots, o.kDim);
    const values = rowsOf(cache.v, h, o.nSlots, o.vDim);
    const { means, greatest } = oracle.lagMeans(keys, values, o.sink, o.block);
    // A spread's relative error is that of its sums. The softmax turns the spread's
    // absolute error into its own relative one.
    const unit = (Math.max(o.kDim, o.vDim) + o.block + 64) * 2 ** -24;
    near(row, Array.from(means), (x, i) => x * unit * (4 + greatest[i]) + 1e-30, JSON.stringify(o));
    // Ranks are exact, given the numbers that are ranked.
    const nPartitions = Math.floor((o.nSlots - o.sink) / o.block);
    const wantRanks = row.slice();
    for (let p = 0; p + 1 < nPartitions; p++) {
      const first = o.sink + p * o.block;
      oracle
        .lagRanks(row.slice(first, first + o.block))
        .forEach((r, i) => (wantRanks[first + i] = r));
    }
    near(ranked[h], wantRanks, (x) => x * 2 ** -23, `ranks ${JSON.stringify(o)}`);
  });
}

test('lagkv measures tokens on the scale of the next partition', async () => {
  let seed = 900;
  for (const [i, shape] of SHAPES.entries()) {
    const layout = LAYOUTS[(i + 1) % 6];
    for (const lag of LAGS.filter((_, l) => i === 0 || l % 3 === i % 3))
      await checkLag({ ...shape, ...lag, layout, seed: seed++ });
  }
  await checkLag({ ...SHAPES[0], nSlots: 2500, sink: 4, block: 1024, layout: 'paged', seed: 950 });
});

test('lagkv ignores NaN and channels without a range, and ranks spoilt tokens last', async () => {
  const lag = { ...SHAPES[0], nSlots: 300, sink: 4, block: 64, layout: 'head-major' };
  await checkLag({ ...lag, seed: 960, key: spoiltKeys(960, 3000) });
  await checkLag({ ...lag, seed: 961, item: spoiltKeys(961, 300) });
  const draw = random(962);
  await checkLag({ ...lag, seed: 962, key: (h, s, i) => (i % 3 === 0 ? 1.5 : draw()) });
  await checkLag({ ...lag, seed: 963, key: () => 2, item: () => 0 });
});
