// Checks of what operations have in common beside views.
import { finite, integer, object, onlyKeys, refuse, word } from './check.js';
import { bindWords, checkRange } from './planes.js';

const MOST_POOL = 1023;
const MOST_PAIRS = 256;

/**
 * Runs `encode` in a compute pass, whose dispatches run in order.
 * @param {GPUCommandEncoder | GPUComputePassEncoder} encoder
 * @param {(pass: GPUComputePassEncoder) => void} encode
 */
export function withPass(encoder, encode) {
  const any = /** @type {any} */ (object('encoder', encoder));
  if (typeof any.dispatchWorkgroups === 'function') return encode(any);
  if (typeof any.beginComputePass !== 'function') {
    throw new TypeError('encoder is neither a GPUCommandEncoder nor a GPUComputePassEncoder');
  }
  const pass = any.beginComputePass({ label: 'kvevict' });
  try {
    encode(pass);
  } finally {
    pass.end();
  }
}

/**
 * f32 [nRows, stride] or u32 lists in a GPU buffer.
 * @param {GPUDevice} device
 * @param {string} name
 * @param {any} value  { buffer, offset, stride }, stride in elements.
 * @param {number} nRows
 * @param {number} length  Elements of a row.
 */
export function checkRows(device, name, value, nRows, length) {
  const range = checkRange(name, value, ['stride', 'nLists', 'count']);
  const stride = integer(`${name}.stride`, value.stride ?? length, 0, 2 ** 30);
  if (stride < length && nRows > 1) refuse(`${name}.stride ${stride} < ${length}`);
  return { ...bindWords(device, name, range, stride * (nRows - 1) + length), stride };
}

/** @param {unknown} nLists @param {number} nHeads */
export function checkLists(nLists, nHeads) {
  const n = integer('keep.nLists', nLists ?? nHeads, 1, 65535);
  if (n !== 1 && n !== nHeads) refuse(`keep.nLists ${n} is neither 1 nor nKvHeads ${nHeads}`);
  return n;
}

/**
 * @param {string} name
 * @param {any} value  none, avgN or maxN.
 * @returns {{ kind: 'none' | 'avg' | 'max', width: number }}
 */
export function checkPool(name, value) {
  const match = /^(?:none|(avg|max)([0-9]{1,9}))$/.exec(String(value));
  if (match === null) refuse(`${name} ${String(value)} is none of none, avgN, maxN`);
  if (match[1] === undefined) return { kind: 'none', width: 1 };
  const width = integer(`${name}'s width`, Number(match[2]), 1, MOST_POOL);
  if (width % 2 === 0) refuse(`${name}'s width ${width} is even`);
  if (width === 1) return { kind: 'none', width };
  return { kind: /** @type {'avg' | 'max'} */ (match[1]), width };
}

/**
 * @param {string} name
 * @param {any} rope  { invFreq, layout }
 * @param {{ dtype: string, headDim: number }} keys
 */
export function checkRope(name, rope, keys) {
  onlyKeys(name, rope, ['invFreq', 'layout']);
  const invFreq = Array.from(object(`${name}.invFreq`, rope.invFreq), (w, f) =>
    finite(`${name}.invFreq[${f}]`, w),
  );
  const interleaved =
    word(`${name}.layout`, rope.layout ?? 'half', ['half', 'interleaved']) === 'interleaved';
  const nPairs = integer(`${name}.invFreq.length`, invFreq.length, 1, MOST_PAIRS);
  invFreq.forEach((w, f) => {
    if (Math.abs(w) > 65536) refuse(`${name}.invFreq[${f}] ${w} is beyond 65536`);
  });
  if (keys.dtype === 'opaque') refuse('view.k.dtype opaque cannot be rotated');
  if (2 * nPairs > keys.headDim) {
    refuse(`${name}.invFreq.length ${nPairs} > ${keys.headDim / 2}, half of headDim`);
  }
  if (keys.dtype === 'f16' && !interleaved && nPairs % 2 !== 0) {
    refuse(`${name}.invFreq.length ${nPairs} is odd: f16 elements rotate two pairs at a time`);
  }
  return { invFreq, interleaved, nPairs };
}
