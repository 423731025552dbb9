import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Operations } from '../operations.js';
import { fromHalf, LAYOUTS, makeCache, random } from './draw.js';
import { makeBuffer, makeDevice, readBuffer, submit } from './gpu.js';
import * as oracle from './oracle.js';

const device = await makeDevice();
const operations = new Operations(device);

const frequencies = (nPairs, base = 10000) =>
  Float32Array.from({ length: nPairs }, (_, f) => base ** (-f / nPairs));

async function check({
  dtype,
  dim,
  nPairs,
  layout,
  rope,
  nHeads = 2,
  nRows = 40,
  most = 5000,
  fromSlots,
  shared,
  seed,
}) {
  const values = random(seed);
  const cache = makeCache(device, {
    seed,
    nHeads,
    // Slot 0 has an offset of 0: a rotation by 0 would make NaN of these.
    key: (h, s, i) => (s === 0 ? [Infinity, -0, NaN][i % 3] : values() * 4 - 2),
    nSlots: nRows + 3,
    kDim: dim,
    dtype,
    layout,
    blockSize: 8,
  });
  const invFreq = frequencies(nPairs);
  const draw = random(seed + 1);
  const nLists = shared ? 1 : nHeads;
  const stride = nRows + 1;
  // Slots ascend; offsets go both ways, and some are 0.
  const listed = new Int32Array(2 + nLists * stride);
  for (let l = 0; l < nLists; l++) {
    let slot = 0;
    for (let i = 0; i < nRows; i++) {
      slot = i < 3 ? i : slot + 1 + Math.floor(draw() * (most / nRows));
      listed[2 + l * stride + i] = fromSlots
        ? slot
        : i % 7 === 0
          ? 0
          : Math.floor(draw() * 2 * most) - most;
    }
  }
  const list = { buffer: makeBuffer(device, listed), offset: 8, stride };
  submit(device, (encoder) =>
    operations.encodeRotate(encoder, {
      view: cache.view,
      nRows,
      nLists,
      rope: { invFreq, layout: rope },
      ...(fromSlots ? { keep: list } : { offsets: list }),
    }),
  );
  const bytes = await readBuffer(device, cache.view.k.buffer, Uint8Array);
  const data = new DataView(bytes.buffer);
  const want = cache.k.bytes.slice();
  for (let h = 0; h < nHeads; h++) {
    for (let i = 0; i < nRows; i++) {
      const number = listed[2 + (h % nLists) * stride + i];
      const offset = fromSlots ? i - number : number;
      if (offset === 0) continue; // not touched: compared as bytes below
      const first = (h * (nRows + 3) + i) * dim;
      const row = oracle.rotate(
        cache.k.values.subarray(first, first + dim),
        offset,
        Array.from(invFreq),
        rope,
      );
      for (let d = 0; d < 2 * nPairs; d++) {
        const at = cache.k.addressOf(h, i) + d * (dtype === 'f32' ? 4 : 2);
        const got =
          dtype === 'f32' ? data.getFloat32(at, true) : fromHalf(data.getUint16(at, true));
        // Elements are below 2: cosines err by 1e-7, f16 by half a step.
        const tolerance =
          dtype === 'f32' ? 8e-7 : 2 ** -11 * Math.max(Math.abs(row[d]), 2 ** -14) + 8e-7;
        assert.ok(
          Math.abs(got - row[d]) <= tolerance,
          `head ${h} row ${i} element ${d}: ${got}, not ${row[d]}`,
        );
        // It has been compared.
        for (let b = 0; b < (dtype === 'f32' ? 4 : 2); b++) want[at + b] = bytes[at + b];
      }
    }
  }
  assert.deepEqual(bytes.subarray(0, want.length), want, 'bytes of no rotated element changed');
}

test('turns keys to their slots or by offsets, and nothing else', async () => {
  let seed = 1;
  for (const rope of ['half', 'interleaved']) {
    for (const [i, [dtype, dim, nPairs]] of [
      ['f32', 64, 32],
      ['f16', 64, 32],
      ['f16', 66, 32],
      ['f32', 67, 33],
      ['f16', 128, 16],
      ['f32', 256, 128],
    ].entries()) {
      for (const fromSlots of [true, false]) {
        await check({
          dtype,
          dim,
          nPairs,
          rope,
          fromSlots,
          shared: seed % 3 === 0,
          layout: LAYOUTS[(i + (fromSlots ? 0 : 2)) % 6],
          seed: seed++,
        });
      }
    }
  }
});

test('angles stay exact over a million positions', async () => {
  await check({
    dtype: 'f32',
    dim: 64,
    nPairs: 32,
    rope: 'half',
    fromSlots: false,
    most: 1e6,
    layout: 'head-major',
    seed: 90,
  });
});
