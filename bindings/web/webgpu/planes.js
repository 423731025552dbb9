// Where rows lie in GPU buffers: checks, and what kernels need to address them.
import { integer, object, onlyKeys, refuse, word } from './check.js';

const BYTES = { f32: 4, f16: 2 };
const STORAGE = 128; // GPUBufferUsage.STORAGE
const MOST_HEADS = 65535;
const MOST_DIM = 1024;

/** @param {number} n @param {number} unit */
const isMultiple = (n, unit) => n % unit === 0;

/**
 * @param {string} name
 * @param {any} value
 * @param {string[]} [more]  Other keys.
 * @returns {{ buffer: GPUBuffer, offset: number }} with an offset within it.
 */
export function checkRange(name, value, more = []) {
  onlyKeys(name, value, ['buffer', 'offset', ...more]);
  const buffer = object(`${name}.buffer`, value.buffer);
  if (typeof buffer.size !== 'number' || typeof buffer.usage !== 'number') {
    throw new TypeError(`${name}.buffer is not a GPUBuffer`);
  }
  if ((buffer.usage & STORAGE) === 0) {
    refuse(`${name}.buffer: its usage ${buffer.usage} lacks GPUBufferUsage.STORAGE`);
  }
  const offset = integer(`${name}.offset`, value.offset ?? 0, 0, buffer.size);
  if (!isMultiple(offset, 4)) refuse(`${name}.offset ${offset} is not a multiple of 4`);
  return { buffer, offset };
}

/**
 * A binding of bytes [first, end) of a buffer. Bindings begin at multiples of
 * minStorageBufferOffsetAlignment, so `skipped` bytes come before the first.
 * @param {GPUDevice} device
 * @param {string} name
 * @param {{ buffer: GPUBuffer, offset: number }} range
 * @param {number} end
 */
export function bind(device, name, { buffer, offset }, end) {
  if (end > buffer.size)
    refuse(`${name} reaches to byte ${end} > ${buffer.size}, its buffer's size`);
  const { minStorageBufferOffsetAlignment: unit, maxStorageBufferBindingSize: most } =
    device.limits;
  const start = offset - (offset % unit);
  const size = Math.ceil((end - start) / 4) * 4;
  if (size > most) {
    refuse(`${name} spans ${size} bytes > ${most}, the device's maxStorageBufferBindingSize`);
  }
  return { binding: { buffer, offset: start, size: Math.max(size, 4) }, skipped: offset - start };
}

/**
 * Words [rows, stride] at a range's offset, of which `length` are used.
 * @param {GPUDevice} device
 * @param {string} name
 * @param {{ buffer: GPUBuffer, offset: number }} range
 * @param {number} length
 */
export function bindWords(device, name, range, length) {
  const { binding, skipped } = bind(device, name, range, range.offset + length * 4);
  return { binding, base: skipped / 4 };
}

/**
 * Checks a plane of a view and completes it.
 * @param {string} name
 * @param {any} plane
 * @param {{ nHeads: number, blockSize: number, dtype?: string, headDim?: number }} of
 */
export function checkPlane(name, plane, of) {
  const range = checkRange(name, plane, [
    'dtype',
    'headDim',
    'rowBytes',
    'tokenStrideBytes',
    'headStrideBytes',
    'blockStrideBytes',
  ]);
  const dtype = word(`${name}.dtype`, plane.dtype ?? of.dtype ?? 'f32', ['f32', 'f16', 'opaque']);
  if (of.dtype !== undefined && dtype !== of.dtype) {
    refuse(`${name}.dtype ${dtype} is not ${of.dtype}, the shape's`);
  }
  let headDim = 0;
  let rowBytes;
  if (dtype === 'opaque') {
    rowBytes = integer(`${name}.rowBytes`, plane.rowBytes, 1, 2 ** 20);
    if (!isMultiple(rowBytes, 4)) refuse(`${name}.rowBytes ${rowBytes} is not a multiple of 4`);
  } else {
    headDim = checkHeadDim(`${name}.headDim`, plane.headDim ?? of.headDim, dtype);
    if (of.headDim !== undefined && headDim !== of.headDim) {
      refuse(`${name}.headDim ${headDim} is not ${of.headDim}, the shape's`);
    }
    rowBytes = headDim * BYTES[dtype];
  }
  const stride = (key, missing) => {
    const bytes = integer(`${name}.${key}`, plane[key] ?? missing, 0, 2 ** 32 - 1);
    if (!isMultiple(bytes, 4)) refuse(`${name}.${key} ${bytes} is not a multiple of 4`);
    return bytes;
  };
  // Without strides rows are packed [tokens, heads, headDim], in blocks as well.
  const isPacked = plane.tokenStrideBytes === undefined && plane.headStrideBytes === undefined;
  if (!isPacked && (plane.tokenStrideBytes === undefined || plane.headStrideBytes === undefined)) {
    refuse(`${name} has only one of tokenStrideBytes and headStrideBytes`);
  }
  const head = stride('headStrideBytes', rowBytes);
  const token = stride('tokenStrideBytes', rowBytes * of.nHeads);
  if (of.blockSize === 0 && plane.blockStrideBytes !== undefined) {
    refuse(`${name}.blockStrideBytes ${plane.blockStrideBytes} without a blockTable`);
  }
  if (of.blockSize > 0 && !isPacked && plane.blockStrideBytes === undefined) {
    refuse(`${name} lacks blockStrideBytes`);
  }
  const block = of.blockSize === 0 ? 0 : stride('blockStrideBytes', token * of.blockSize);
  return { ...range, name, dtype, headDim, rowBytes, head, token, block };
}

/** @param {string} name @param {unknown} value @param {string} dtype */
export function checkHeadDim(name, value, dtype) {
  const dim = integer(name, value, 1, MOST_DIM);
  if (dtype === 'f16' && dim % 2 !== 0) {
    refuse(`${name} ${dim} is odd: a row of f16 takes whole 32-bit words`);
  }
  return dim;
}

// Refuses rows that share bytes, as far as strides tell.
function checkApart(plane, nHeads, nSlots) {
  const steps = [
    ['headStrideBytes', plane.head, nHeads],
    ['tokenStrideBytes', plane.token, nSlots],
  ].filter(([, , n]) => n > 1);
  steps.sort((a, b) => a[1] - b[1]);
  let span = plane.rowBytes;
  for (const [key, bytes, n] of steps) {
    if (bytes < span) refuse(`${plane.name}.${key} ${bytes} < ${span}: rows would overlap`);
    span += (n - 1) * bytes;
  }
  return span;
}

/**
 * A plane as kernels address it.
 * @param {GPUDevice} device
 * @param {ReturnType<typeof checkPlane>} plane
 * @param {{ nHeads: number, nTokens: number, blockSize: number, table?: any }} of
 * @param {'score' | 'move' | 'words'} use
 */
export function bindRows(device, plane, of, use) {
  const { nHeads, nTokens, blockSize, table } = of;
  const isPaged = blockSize > 0;
  const nSlots = isPaged ? Math.min(blockSize, nTokens) : nTokens;
  const end = plane.offset + (nSlots === 0 ? 0 : checkApart(plane, nHeads, nSlots));
  const { buffer } = plane;
  if (end > buffer.size) {
    refuse(`${plane.name} reaches to byte ${end} > ${buffer.size}, its buffer's size`);
  }
  // Which blocks there are is known to the GPU alone.
  const last = isPaged ? buffer.size - (buffer.size % 4) : end;
  const { binding, skipped } = bind(device, plane.name, plane, last);
  // Kernels that score read 4 elements at once, and kernels that move 16 bytes,
  // if all addresses are multiples of them.
  const unit = use === 'move' || plane.dtype === 'f32' ? 16 : 8;
  const whole = use === 'move' ? isMultiple(plane.rowBytes, 16) : isMultiple(plane.headDim, 4);
  const steps = [skipped, plane.head, plane.token, plane.block];
  const wide = use !== 'words' && whole && steps.every((step) => isMultiple(step, unit));
  const step = wide ? unit : 4;
  return {
    bindings: isPaged ? [binding, table.binding] : [binding],
    params: {
      base: skipped / step,
      head: plane.head / step,
      token: plane.token / step,
      block: plane.block / step,
      block_size: Math.max(blockSize, 1),
      table: isPaged ? table.base : 0,
      table_head: isPaged ? table.head : 0,
    },
    variant: {
      dtype: plane.dtype,
      dim: plane.headDim,
      words: plane.rowBytes / 4,
      wide,
      paged: isPaged,
    },
  };
}

/**
 * Checks a view of one layer.
 * @param {GPUDevice} device
 * @param {string} name
 * @param {any} view
 * @param {{ nTokens: number, nKvHeads?: number, dtype?: string, kHeadDim?: number, vHeadDim?: number }} of
 */
export function checkView(device, name, view, of) {
  onlyKeys(name, view, ['nKvHeads', 'k', 'v', 'companions', 'blockTable', 'blockSize']);
  const nHeads = integer(`${name}.nKvHeads`, view.nKvHeads ?? of.nKvHeads, 1, MOST_HEADS);
  if (of.nKvHeads !== undefined && nHeads !== of.nKvHeads) {
    refuse(`${name}.nKvHeads ${nHeads} is not ${of.nKvHeads}, the shape's`);
  }
  const { nTokens } = of;
  const isPaged = view.blockTable !== undefined;
  if (!isPaged && view.blockSize !== undefined) {
    refuse(`${name}.blockSize ${view.blockSize} without a blockTable`);
  }
  const blockSize = isPaged ? integer(`${name}.blockSize`, view.blockSize, 1, 2 ** 20) : 0;
  let table;
  if (isPaged) {
    const tableName = `${name}.blockTable`;
    const range = checkRange(tableName, view.blockTable, ['headStride']);
    const nBlocks = Math.ceil(nTokens / blockSize);
    const head = integer(`${tableName}.headStride`, view.blockTable.headStride ?? 0, 0, 2 ** 30);
    if (head > 0 && head < nBlocks) {
      refuse(`${tableName}.headStride ${head} < ${nBlocks} blocks of ${nTokens} tokens`);
    }
    const length = head * (nHeads - 1) + nBlocks;
    table = { ...bindWords(device, tableName, range, length), head };
  }
  const common = { nHeads, blockSize };
  const k = checkPlane(`${name}.k`, view.k, { ...common, dtype: of.dtype, headDim: of.kHeadDim });
  const v =
    view.v === undefined
      ? undefined
      : checkPlane(`${name}.v`, view.v, { ...common, dtype: of.dtype, headDim: of.vHeadDim });
  const companions = (view.companions ?? []).map((plane, i) =>
    checkPlane(`${name}.companions[${i}]`, plane, common),
  );
  const address = { nHeads, nTokens, blockSize, table };
  return { nHeads, k, v, companions, address };
}
