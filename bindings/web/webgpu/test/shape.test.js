import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Operations } from '../operations.js';
import { random } from './draw.js';
import { makeBuffer, makeDevice, readBuffer, submit } from './gpu.js';
import * as oracle from './oracle.js';

const device = await makeDevice();
const operations = new Operations(device);
const SPECIAL = [NaN, Infinity, -Infinity, 0, 1, -1, 2, 3, 1, 0, -2, 0.5];

async function check({
  nRows = 2,
  nTerms = 1,
  nTokens,
  nScored = nTokens,
  pool,
  edge = 'pad',
  reduce = 'mean',
  value,
}) {
  const fromStride = nScored + 3;
  const toStride = nTokens + 2;
  const draw = random(nTokens + nTerms);
  const scores = Float32Array.from(
    { length: 2 + nRows * nTerms * fromStride },
    () => value?.(draw) ?? draw() - 0.3,
  );
  const out = makeBuffer(device, new Float32Array(1 + nRows * toStride).fill(-7));
  submit(device, (encoder) =>
    operations.encodeShape(encoder, {
      from: { buffer: makeBuffer(device, scores), offset: 8, stride: fromStride },
      to: { buffer: out, offset: 4, stride: toStride },
      nRows,
      nTerms,
      nTokens,
      nScored,
      pool,
      edge,
      reduce,
    }),
  );
  const got = await readBuffer(device, out, Float32Array);
  const [, kind, width] = /^(none|avg|max)([0-9]*)$/.exec(pool);
  const what = JSON.stringify({ nTerms, nTokens, nScored, pool, edge, reduce });
  for (let r = 0; r < nRows; r++) {
    const terms = Array.from({ length: nTerms }, (_, t) => {
      const first = 2 + (r * nTerms + t) * fromStride;
      const row = Array.from(scores.subarray(first, first + nScored));
      return kind === 'none' ? row : oracle.pool(row, Number(width), kind, edge);
    });
    for (let j = 0; j < nTokens; j++) {
      const column = terms.map((row) => row[j]);
      const sum = column.reduce((a, b) => a + b, 0);
      const want =
        j >= nScored
          ? Infinity
          : reduce === 'max'
            ? Math.max(...column)
            : reduce === 'sum'
              ? sum
              : sum / nTerms;
      const x = got[1 + r * toStride + j];
      // Sums of at most width * nTerms terms below 3.
      const tolerance = 3 * (Number(width || 1) * nTerms + 2) ** 2 * 2 ** -24;
      const same =
        Object.is(x, want) ||
        (Number.isNaN(x) && Number.isNaN(want)) ||
        Math.abs(x - want) <= tolerance;
      assert.ok(same, `${what} row ${r} slot ${j}: ${x}, not ${want}`);
    }
    assert.equal(got[1 + r * toStride + nTokens], -7);
  }
}

test('pools along the tokens, up to both edges', async () => {
  for (const pool of ['none', 'avg1', 'avg3', 'avg7', 'max5', 'max7', 'avg63']) {
    for (const edge of ['pad', 'shrink']) {
      for (const nTokens of [1, 2, 5, 7, 127, 128, 300]) await check({ pool, edge, nTokens });
    }
  }
  await check({ pool: 'avg7', nTokens: 5000 });
});

test('reduces rows, and gives tokens of the window +infinity', async () => {
  for (const pool of ['none', 'avg5', 'max5']) {
    for (const reduce of ['mean', 'max', 'sum']) {
      for (const nTerms of [1, 2, 7])
        await check({ pool, reduce, nTerms, nTokens: 90, nScored: 58 });
    }
  }
  await check({ pool: 'avg7', nTokens: 40, nScored: 0 });
});

test('NaN in, NaN out; infinities stay', async () => {
  const value = (draw) => SPECIAL[Math.floor(draw() * SPECIAL.length)];
  for (const pool of ['none', 'avg3', 'max3']) {
    for (const reduce of ['mean', 'max', 'sum']) {
      for (const nTerms of [1, 2]) await check({ pool, reduce, nTerms, nTokens: 300, value });
    }
  }
});
