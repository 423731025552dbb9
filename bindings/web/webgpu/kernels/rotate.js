// Rotates keys by RoPE, as if their tokens were at other positions.
import { rowAddress, rowBuffers, rowFields } from './rows.js';

// 1 / (2 pi) in units of 2^-96.
const TURN = 0x28be60db9391054a7f09d5f4n;

/**
 * A frequency's fraction of a turn per position, as two words of 2^-64 turns,
 * the low one first. Angles are then exact whatever the position.
 * @param {ArrayLike<number>} frequencies  In radians per position, as f32.
 */
export function turnsOf(frequencies) {
  const words = new Uint32Array(2 * frequencies.length);
  const bits = new DataView(new ArrayBuffer(4));
  for (let f = 0; f < frequencies.length; f++) {
    bits.setFloat32(0, frequencies[f]);
    const u = bits.getUint32(0);
    const exponent = (u >>> 23) & 255;
    const mantissa = BigInt((u & 0x7fffff) | (exponent > 0 ? 0x800000 : 0));
    // frequency = mantissa * 2^e; its turns in units of 2^-64.
    const e = Math.max(exponent, 1) - 150;
    const shift = BigInt(e - 32);
    let turns = shift >= 0n ? (mantissa * TURN) << shift : (mantissa * TURN) >> -shift;
    if (u >>> 31 === 1) turns = -turns;
    words[2 * f] = Number(BigInt.asUintN(32, turns));
    words[2 * f + 1] = Number(BigInt.asUintN(32, turns >> 32n));
  }
  return words;
}

/**
 * An invocation per (word of a row's first elements, row, head): the two
 * elements of a pair, or with f16 the elements of two. v.fromSlots: row i is
 * rotated from position keep[i] to i; else by offsets[i].
 * @param {{ rows: any, nPairs: number, interleaved: boolean, fromSlots: boolean }} v
 */
export function rotateRows(v) {
  const { rows, nPairs, interleaved } = v;
  const isHalf = rows.dtype === 'f16';
  const nUnits = isHalf && !interleaved ? nPairs / 2 : nPairs;
  // The words of a unit's elements, and its first pair.
  const words = interleaved
    ? isHalf
      ? ['unit']
      : ['2u * unit', '2u * unit + 1u']
    : ['unit', `unit + ${nUnits}u`];
  const body = isHalf
    ? interleaved
      ? `let turned = turn(0u, unpack2x16float(load(row, unit)));
  store(row, unit, pack(turned));`
      : `let a = unpack2x16float(load(row, ${words[0]}));
  let b = unpack2x16float(load(row, ${words[1]}));
  let first = turn(0u, vec2f(a.x, b.x));
  let second = turn(1u, vec2f(a.y, b.y));
  store(row, ${words[0]}, pack(vec2f(first.x, second.x)));
  store(row, ${words[1]}, pack(vec2f(first.y, second.y)));`
    : `let turned = turn(0u, vec2f(bitcast<f32>(load(row, ${words[0]})), bitcast<f32>(load(row, ${words[1]}))));
  store(row, ${words[0]}, bitcast<u32>(turned.x));
  store(row, ${words[1]}, bitcast<u32>(turned.y));`;
  return {
    fields: [
      ['n_rows', 'u32'],
      ['list_base', 'u32'],
      ['list_stride', 'u32'], // 0: one list for all heads
      ...rowFields('rows'),
    ],
    buffers: [
      ...rowBuffers('rows', { ...rows, wide: false }, 'u32', true),
      { name: 'list', type: 'array<u32>' },
      { name: 'turns', type: 'array<vec2u>' },
    ],
    code: `
${rowAddress('rows', rows)}
fn load(row: u32, word: u32) -> u32 { return rows[row + word]; }
fn store(row: u32, word: u32, bits: u32) { rows[row + word] = bits; }
var<private> angles: vec2u; // of the unit's pairs, in 2^-32 turns

fn multiply_high(a: u32, b: u32) -> u32 {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let middle = (a >> 16u) * (b & 0xffffu) + (low >> 16u); // no overflow
  let other = (a & 0xffffu) * (b >> 16u) + (middle & 0xffffu);
  return (a >> 16u) * (b >> 16u) + (middle >> 16u) + (other >> 16u);
}

// The upper half of offset * turns[pair], modulo 2^64.
fn angle_of(offset: i32, pair: u32) -> u32 {
  let size = select(u32(offset), 0u - u32(offset), offset < 0);
  let low = size * turns[pair].x;
  let high = multiply_high(size, turns[pair].x) + size * turns[pair].y;
  // A negative number's upper half is one more if nothing is carried into it.
  return select(high, ~high + select(0u, 1u, low == 0u), offset < 0);
}

// Rotates a pair of elements. The nearest quarter turn is exact; cosine and sine
// of the rest, at most 1/8 turn, are polynomials interpolated at the Chebyshev
// nodes, within 1e-7.
fn turn(i: u32, pair: vec2f) -> vec2f {
  let angle = angles[i];
  let quarter = (angle + 0x20000000u) >> 30u;
  let t = f32(bitcast<i32>(angle - (quarter << 30u))) * 2.3283064365386963e-10;
  let u = t * t;
  let s = (((-75.4016113 * u + 81.5925446) * u - 41.3416634) * u + 6.28318548) * t;
  let c = (((59.4241066 * u - 85.448822) * u + 64.9393692) * u - 19.7392082) * u + 1.0;
  let is_odd = (quarter & 1u) == 1u;
  let cosine = select(c, s, is_odd) * select(1.0, -1.0, ((quarter + 1u) & 2u) != 0u);
  let sine = select(s, c, is_odd) * select(1.0, -1.0, (quarter & 2u) != 0u);
  return vec2f(pair.x * cosine - pair.y * sine, pair.x * sine + pair.y * cosine);
}

// Rounds to the nearest f16, halves to even: a GPU's own rounding may differ.
fn half_of(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 16u) & 0x8000u;
  let size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) { return sign | 0x7e00u; }
  if (size >= 0x47800000u) { return sign | 0x7c00u; }
  var mantissa = size;
  var shift = 13u;
  if (size < 0x38800000u) { // below the least normal one
    if (size < 0x33000000u) { return sign; }
    shift = 126u - (size >> 23u);
    mantissa = (size & 0x7fffffu) | 0x800000u;
  } else {
    mantissa -= 0x38000000u;
  }
  let kept = mantissa >> shift;
  let rest = mantissa & ((1u << shift) - 1u);
  let middle = 1u << (shift - 1u);
  let up = rest > middle || (rest == middle && (kept & 1u) == 1u);
  return sign | (kept + select(0u, 1u, up));
}
fn pack(pair: vec2f) -> u32 { return half_of(pair.x) | (half_of(pair.y) << 16u); }

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let i = id.x / ${nUnits}u;
  let unit = id.x % ${nUnits}u;
  if (i >= p.n_rows) { return; }
  let head = id.y;
  let listed = bitcast<i32>(list[p.list_base + head * p.list_stride + i]);
  let offset = ${v.fromSlots ? 'i32(i) - listed' : 'listed'};
  if (offset == 0) { return; }
  ${
    isHalf && !interleaved
      ? 'angles = vec2u(angle_of(offset, 2u * unit), angle_of(offset, 2u * unit + 1u));'
      : 'angles = vec2u(angle_of(offset, unit), 0u);'
  }
  let row = rows_row(head, i);
  ${body}
}`,
  };
}

/** Workgroups of `rotateRows` in x. @param {any} v @param {number} nRows */
export function rotateGroups(v, nRows) {
  const nUnits = v.rows.dtype === 'f16' && !v.interleaved ? v.nPairs / 2 : v.nPairs;
  return Math.ceil((nUnits * nRows) / 64);
}
