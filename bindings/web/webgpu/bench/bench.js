// Times of the kernels on a device, beside a copy of the bytes that they read.
import { Operations } from '../index.js';

const USAGE = 128 | 4 | 8; // STORAGE, COPY_SRC, COPY_DST
const RUNS = 5;

/**
 * One row per step: milliseconds, and those of a copy of its bytes.
 * Times are from submission to completion, so small ones are those of the queue.
 * @param {GPUDevice} device
 * @param {{ nQHeads: number, nKvHeads: number, headDim: number, dtype: 'f32' | 'f16',
 *   nTokens: number, window: number, budget: number }} shape
 */
export async function measure(device, shape) {
  const { nQHeads, nKvHeads, headDim, dtype, nTokens, window, budget } = shape;
  const operations = new Operations(device);
  const row = headDim * (dtype === 'f32' ? 4 : 2);
  const cacheBytes = nKvHeads * nTokens * row;
  const make = (size) => device.createBuffer({ size, usage: USAGE });
  const random = (buffer) => {
    // Bits of numbers near 1, in either dtype.
    const words = Uint32Array.from({ length: 65536 }, () =>
      dtype === 'f32'
        ? 0x3f000000 + Math.floor(Math.random() * 0xffffff)
        : 0x38003800 + Math.floor(Math.random() * 0x3ff) * 0x10001,
    );
    for (let at = 0; at < buffer.size; at += words.byteLength) {
      device.queue.writeBuffer(
        buffer,
        at,
        words,
        0,
        Math.min(words.length, (buffer.size - at) / 4),
      );
    }
    return buffer;
  };
  const strides = { headDim, dtype, tokenStrideBytes: row, headStrideBytes: row * nTokens };
  const view = {
    nKvHeads,
    k: { buffer: random(make(cacheBytes)), ...strides },
    v: { buffer: random(make(cacheBytes)), ...strides },
  };
  const queries = { buffer: random(make(nQHeads * window * row)), headDim, dtype };
  const [scores, pooled, keep] = [1, 1, 1].map(() => ({ buffer: make(nKvHeads * nTokens * 4) }));
  const nScored = nTokens - window;
  const [a, b] = [make(2 * cacheBytes), make(2 * cacheBytes)];
  const keptBytes = 2 * nKvHeads * budget * row;
  const ends = { sink: 4, recent: window };
  const lists = { keep, nTokens, nKeep: budget };
  const steps = [
    [
      'window attention',
      cacheBytes,
      (pass) =>
        operations.encodeWindowScores(pass, {
          view,
          nTokens,
          queries,
          nQHeads,
          window,
          scores,
          nScored,
        }),
    ],
    [
      'pooling',
      nKvHeads * nTokens * 4,
      (pass) =>
        operations.encodeShape(pass, {
          from: scores,
          to: pooled,
          nRows: nKvHeads,
          nTokens,
          nScored,
          pool: 'avg7',
        }),
    ],
    [
      'selection',
      nKvHeads * nTokens * 4,
      (pass) =>
        operations.encodeSelect(pass, { scores: pooled, nLists: nKvHeads, ...lists, ...ends }),
    ],
    ['compaction', keptBytes, (pass) => operations.encodeCompact(pass, { view, ...lists })],
    ['knorm', cacheBytes, (pass) => operations.encodeKeyNorms(pass, { view, nTokens, scores })],
    ['keydiff', cacheBytes, (pass) => operations.encodeKeyDiffs(pass, { view, nTokens, scores })],
    [
      'lagkv',
      2 * cacheBytes,
      (pass) => operations.encodeLagScores(pass, { view, nTokens, scores }),
    ],
  ];
  const rows = [];
  for (const [name, bytes, encode] of steps) {
    const step = await fastest(device, (encoder) => encode(encoder));
    const copy = await fastest(device, (encoder) => encoder.copyBufferToBuffer(a, 0, b, 0, bytes));
    rows.push({ name, bytes, ms: step, copyMs: copy });
  }
  for (const buffer of [
    view.k.buffer,
    view.v.buffer,
    queries.buffer,
    scores.buffer,
    pooled.buffer,
    keep.buffer,
    a,
    b,
  ])
    buffer.destroy();
  operations.destroy();
  return rows;
}

// The least of some times. The first run compiles and does not count.
async function fastest(device, encode) {
  let least = Infinity;
  for (let i = 0; i <= RUNS; i++) {
    const encoder = device.createCommandEncoder();
    encode(encoder);
    const commands = encoder.finish();
    await device.queue.onSubmittedWorkDone();
    const start = performance.now();
    device.queue.submit([commands]);
    await device.queue.onSubmittedWorkDone();
    if (i > 0) least = Math.min(least, performance.now() - start);
  }
  return least;
}

/** @param {Awaited<ReturnType<typeof measure>>} rows */
export function table(rows) {
  const line = (name, ...cells) =>
    name.padEnd(18) + cells.map((cell) => cell.padStart(12)).join('');
  return [
    line('step', 'MiB', 'ms', 'copy ms'),
    ...rows.map(({ name, bytes, ms, copyMs }) =>
      line(name, (bytes / 2 ** 20).toFixed(2), ms.toFixed(3), copyMs.toFixed(3)),
    ),
  ].join('\n');
}

/** The shape of a small chat model's layer. */
export const SHAPE = {
  nQHeads: 32,
  nKvHeads: 8,
  headDim: 64,
  dtype: /** @type {const} */ ('f16'),
  nTokens: 4096,
  window: 32,
  budget: 1024,
};
