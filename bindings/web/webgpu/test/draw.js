// Random inputs, the same in every run, and caches in several layouts.
import { makeBuffer } from './gpu.js';

/** @param {number} seed @returns {() => number} numbers in [0, 1). */
export function random(seed) {
  let state = BigInt(seed) * 2n + 1n;
  return () => {
    state = BigInt.asUintN(64, state * 6364136223846793005n + 1442695040888963407n);
    return Number(state >> 32n) / 2 ** 32;
  };
}

/** Nearest f16, halves to even. @param {number} x */
export function toHalf(x) {
  if (Number.isNaN(x)) return 0x7e00;
  const sign = x < 0 || Object.is(x, -0) ? 0x8000 : 0;
  const size = Math.abs(x);
  if (size >= 65520) return sign | 0x7c00;
  // A step of the numbers near x; below 2^-14 it is 2^-24.
  const exponent = Math.max(-14, Math.floor(Math.log2(size || 1e-30)));
  const step = 2 ** (exponent - 10);
  let n = Math.floor(size / step);
  const rest = size / step - n;
  if (rest > 0.5 || (rest === 0.5 && n % 2 === 1)) n++;
  const bits =
    exponent === -14 && n < 1024
      ? n
      : n === 2048
        ? (exponent + 16) << 10
        : ((exponent + 15) << 10) | (n - 1024);
  return sign | bits;
}

/** @param {number} bits */
export function fromHalf(bits) {
  const exponent = (bits >> 10) & 31;
  const mantissa = bits & 1023;
  const sign = bits & 0x8000 ? -1 : 1;
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return exponent === 0
    ? sign * mantissa * 2 ** -24
    : sign * (1 + mantissa / 1024) * 2 ** (exponent - 15);
}

/** @param {string} dtype */
export const bytesOf = (dtype) => (dtype === 'f32' ? 4 : 2);

/**
 * A plane of rows in some layout. `values` [heads, slots, dim] are what kernels
 * read; they are rounded to the dtype.
 * @param {GPUDevice} device
 * @param {object} o
 * @param {(head: number, slot: number, i: number) => number} o.value
 * @param {'head-major' | 'token-major' | 'padded' | 'paged' | 'paged-heads' | 'aligned'} o.layout
 */
export function makePlane(
  device,
  { value, nHeads, nSlots, dim, dtype, layout, table, blockSize = 0 },
) {
  const size = bytesOf(dtype);
  const row = dim * size;
  const up = (n, to) => Math.ceil(n / to) * to;
  let offset = 0;
  let head = row;
  let token = row * nHeads;
  let block = 0;
  if (layout === 'head-major') [head, token] = [row * nSlots, row];
  // Rows at odd multiples of 4 bytes, so that no wide load fits.
  if (layout === 'padded')
    [offset, token, head] = [260, up(row, 4) + 4, (up(row, 4) + 4) * (nSlots + 1)];
  // Whole 16 bytes from row to row, whatever a row's own size.
  if (layout === 'aligned')
    [offset, token, head] = [272, up(row, 16) + 16, (up(row, 16) + 16) * nSlots];
  if (layout === 'paged') block = token * blockSize;
  if (layout === 'paged-heads') {
    [token, head] = [row, row * blockSize];
    block = head * nHeads + 32;
    offset = 512;
  }
  const nBlocks = table === undefined ? 0 : Math.max(...table.ids) + 1;
  const addressOf = (h, s) =>
    table === undefined
      ? offset + h * head + s * token
      : offset +
        table.ids[h * table.headStride + Math.floor(s / blockSize)] * block +
        h * head +
        (s % blockSize) * token;
  let end = offset + (table === undefined ? 0 : nBlocks * block);
  for (let h = 0; h < nHeads; h++)
    if (nSlots > 0) end = Math.max(end, addressOf(h, nSlots - 1) + row);
  // Between rows lie other numbers, in both dtypes.
  const bytes = Uint8Array.from({ length: up(end, 4) }, (_, i) => (i * 37 + 64) & 0x7f);
  const data = new DataView(bytes.buffer);
  const values = new Float64Array(nHeads * nSlots * dim);
  for (let h = 0; h < nHeads; h++) {
    for (let s = 0; s < nSlots; s++) {
      for (let i = 0; i < dim; i++) {
        const x = value(h, s, i);
        const at = addressOf(h, s) + i * size;
        if (dtype === 'f32') data.setFloat32(at, x, true);
        else data.setUint16(at, toHalf(x), true);
        values[(h * nSlots + s) * dim + i] = dtype === 'f32' ? Math.fround(x) : fromHalf(toHalf(x));
      }
    }
  }
  const buffer = makeBuffer(device, bytes);
  const plane = {
    buffer,
    offset,
    dtype,
    headDim: dim,
    tokenStrideBytes: token,
    headStrideBytes: head,
    ...(table === undefined ? {} : { blockStrideBytes: block }),
  };
  return { plane, bytes, values, addressOf, row };
}

/** A table of shuffled blocks, with room for some that are not used. */
export function makeTable(device, { seed, nHeads, nSlots, blockSize, perHead }) {
  const draw = random(seed);
  const nBlocks = Math.max(1, Math.ceil(nSlots / blockSize));
  const nLists = perHead ? nHeads : 1;
  const all = Array.from({ length: nBlocks * nLists + 3 }, (_, i) => i);
  for (let i = all.length - 1; i > 0; i--) {
    const j = Math.floor(draw() * (i + 1));
    [all[i], all[j]] = [all[j], all[i]];
  }
  const headStride = perHead ? nBlocks + 1 : 0;
  const ids = [];
  for (let l = 0; l < nLists; l++) {
    for (let b = 0; b < nBlocks; b++) ids[l * headStride + b] = all[l * nBlocks + b];
  }
  const words = Uint32Array.from({ length: ids.length + 5 }, (_, i) => ids[i - 5] ?? 0);
  return {
    ids: Array.from({ length: ids.length }, (_, i) => ids[i] ?? 0),
    headStride,
    table: { buffer: makeBuffer(device, words), offset: 20, headStride },
  };
}

/** A view of K and V in one of the layouts. */
export function makeCache(device, o = {}) {
  const { seed = 1, nHeads = 2, nSlots = 50, kDim = 64, vDim = kDim } = o;
  const { dtype = 'f32', layout = 'head-major', key, blockSize = 16 } = o;
  const isPaged = layout.startsWith('paged');
  const table = isPaged
    ? makeTable(device, {
        seed: seed + 9,
        nHeads,
        nSlots,
        blockSize,
        perHead: layout === 'paged-heads',
      })
    : undefined;
  const draw = random(seed);
  const common = { nHeads, nSlots, dtype, layout, table, blockSize };
  const k = makePlane(device, { ...common, dim: kDim, value: key ?? (() => draw() * 4 - 2) });
  const v = makePlane(device, { ...common, dim: vDim, value: o.item ?? (() => draw() * 4 - 2) });
  const view = { nKvHeads: nHeads, k: k.plane, v: v.plane };
  if (isPaged) Object.assign(view, { blockTable: table.table, blockSize });
  return { view, k, v };
}

export const LAYOUTS = ['head-major', 'token-major', 'padded', 'paged', 'paged-heads', 'aligned'];
