import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Operations } from '../operations.js';
import { LAYOUTS, makeCache, random } from './draw.js';
import { makeBuffer, makeDevice, readBuffer, submit } from './gpu.js';

const device = await makeDevice();
const operations = new Operations(device);

// Ascending slots, drawn; `from` first ones stay where they are.
function drawKeep(draw, nTokens, nKeep, from) {
  const rest = Array.from({ length: nTokens - from }, (_, i) => i + from);
  while (rest.length > nKeep - from) rest.splice(Math.floor(draw() * rest.length), 1);
  return [...Array.from({ length: from }, (_, i) => i), ...rest];
}

// What a plain loop over rows makes of a plane's bytes.
function moved(plane, lists) {
  const out = plane.bytes.slice();
  lists.forEach((keep, head) =>
    keep.forEach((slot, i) => {
      const from = plane.addressOf(head, slot);
      out.set(out.slice(from, from + plane.row), plane.addressOf(head, i));
    }),
  );
  return out;
}

function keepBuffer(lists, nKeep) {
  const words = new Uint32Array(1 + lists.length * (nKeep + 1)).fill(0xffffffff);
  lists.forEach((keep, l) => words.set(keep, 1 + l * (nKeep + 1)));
  return { buffer: makeBuffer(device, words), offset: 4, stride: nKeep + 1, nLists: lists.length };
}

const CASES = [
  { nSlots: 1, nKeep: 1, from: 0 },
  { nSlots: 2, nKeep: 1, from: 0 },
  { nSlots: 40, nKeep: 0, from: 0 },
  { nSlots: 70, nKeep: 33, from: 5 },
  { nSlots: 70, nKeep: 70, from: 70 },
  { nSlots: 131, nKeep: 130, from: 64 },
  { nSlots: 513, nKeep: 100, from: 1 },
  { nSlots: 5000, nKeep: 700, from: 4, only: true },
];
const SHAPES = [
  { dtype: 'f32', kDim: 64, vDim: 80, nHeads: 3 },
  { dtype: 'f16', kDim: 64, vDim: 128, nHeads: 2 },
  { dtype: 'f16', kDim: 66, vDim: 70, nHeads: 3 },
  { dtype: 'f32', kDim: 65, vDim: 67, nHeads: 2 },
  { dtype: 'f16', kDim: 256, vDim: 256, nHeads: 1 },
];

test('compaction gives the bytes of a plain loop, and touches no others', async () => {
  let seed = 1;
  for (const layout of LAYOUTS) {
    for (const shape of SHAPES) {
      for (const { nSlots, nKeep, from, only } of CASES) {
        if (only && shape.kDim !== 64) continue;
        seed++;
        const draw = random(seed);
        const cache = makeCache(device, { ...shape, seed, nSlots, layout });
        // Heads with tables of their own, and every second other cache, have lists of their own.
        const nLists = seed % 2 === 0 ? 1 : shape.nHeads;
        const lists = Array.from({ length: nLists }, () =>
          drawKeep(draw, nSlots, nKeep, Math.min(from, nKeep)),
        );
        submit(device, (encoder) =>
          operations.encodeCompact(encoder, {
            view: cache.view,
            nTokens: nSlots,
            nKeep,
            keep: keepBuffer(lists, nKeep),
          }),
        );
        const ofHeads = Array.from({ length: shape.nHeads }, (_, h) => lists[h % nLists]);
        for (const plane of [cache.k, cache.v]) {
          const bytes = await readBuffer(device, plane.plane.buffer, Uint8Array);
          assert.deepEqual(
            bytes.subarray(0, plane.bytes.length),
            moved(plane, ofHeads),
            JSON.stringify({ layout, shape, nSlots, nKeep }),
          );
        }
      }
    }
  }
});

test('companions move along, and K and V may share a buffer', async () => {
  const [nHeads, nSlots, dim, nKeep] = [2, 90, 64, 31];
  const draw = random(77);
  const row = dim * 4;
  const words = Float32Array.from({ length: 2 * nHeads * nSlots * dim }, draw);
  const shared = makeBuffer(device, words);
  const strides = { tokenStrideBytes: 2 * nHeads * row, headStrideBytes: row };
  const places = makeBuffer(device, Uint32Array.from({ length: nHeads * nSlots }, (_, i) => i));
  const view = {
    nKvHeads: nHeads,
    k: { buffer: shared, dtype: 'f32', headDim: dim, ...strides },
    v: { buffer: shared, offset: nHeads * row, dtype: 'f32', headDim: dim, ...strides },
    companions: [
      {
        buffer: places,
        dtype: 'opaque',
        rowBytes: 4,
        tokenStrideBytes: 4,
        headStrideBytes: 4 * nSlots,
      },
    ],
  };
  const lists = [0, 1].map(() => drawKeep(draw, nSlots, nKeep, 2));
  submit(device, (encoder) =>
    operations.encodeCompact(encoder, {
      view,
      nTokens: nSlots,
      nKeep,
      keep: keepBuffer(lists, nKeep),
    }),
  );
  const now = await readBuffer(device, shared, Float32Array);
  const nowPlaces = await readBuffer(device, places, Uint32Array);
  lists.forEach((keep, h) =>
    keep.forEach((slot, i) => {
      assert.equal(nowPlaces[h * nSlots + i], h * nSlots + slot);
      for (let part = 0; part < 2; part++) {
        const at = (s) => ((s * 2 + part) * nHeads + h) * dim;
        assert.deepEqual(now.slice(at(i), at(i) + dim), words.slice(at(slot), at(slot) + dim));
      }
    }),
  );
});

test('gather copies survivors to a cache of any other layout', async () => {
  let seed = 500;
  for (const shape of SHAPES) {
    for (const [from, to] of [
      ['head-major', 'paged'],
      ['paged-heads', 'padded'],
      ['padded', 'token-major'],
      ['token-major', 'paged-heads'],
      ['paged', 'head-major'],
    ]) {
      for (const [nSlots, nKeep, firstSlot] of [
        [50, 50, 0],
        [120, 0, 3],
        [120, 37, 9],
        [700, 130, 0],
      ]) {
        seed++;
        const draw = random(seed);
        const source = makeCache(device, { ...shape, seed, nSlots, layout: from });
        const target = makeCache(device, {
          ...shape,
          seed: seed + 5000,
          nSlots: firstSlot + nKeep + 2,
          layout: to,
          blockSize: 8,
        });
        const lists = Array.from({ length: shape.nHeads }, () => drawKeep(draw, nSlots, nKeep, 0));
        submit(device, (encoder) =>
          operations.encodeGather(encoder, {
            view: source.view,
            destination: target.view,
            nTokens: nSlots,
            nKeep,
            firstSlot,
            keep: keepBuffer(lists, nKeep),
          }),
        );
        for (const plane of ['k', 'v']) {
          const want = target[plane].bytes.slice();
          lists.forEach((keep, h) =>
            keep.forEach((slot, i) => {
              const at = source[plane].addressOf(h, slot);
              want.set(
                source[plane].bytes.subarray(at, at + source[plane].row),
                target[plane].addressOf(h, firstSlot + i),
              );
            }),
          );
          const bytes = await readBuffer(device, target.view[plane].buffer, Uint8Array);
          assert.deepEqual(
            bytes.subarray(0, want.length),
            want,
            JSON.stringify({ from, to, shape, nSlots, nKeep }),
          );
        }
      }
    }
  }
});
