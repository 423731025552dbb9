// Scores by keys alone: their norms, and their cosines with the mean direction.
import { FLOATS, readRows, tree } from './rows.js';

// What a kernel has that scores one key per invocation: `body` sets `bits`, the score of `row`.
const scoreKeys = (keys, body, buffers = []) => ({
  fields: [['n_tokens', 'u32'], ['base', 'u32'], ['stride', 'u32'], ...keys.fields],
  buffers: [...keys.buffers, ...buffers, { name: 'scores', type: 'array<u32>', write: true }],
  code: `
${FLOATS}
${keys.text}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let j = id.x;
  if (j >= p.n_tokens) { return; }
  let row = keys_row(id.y, j);
  ${body}
  scores[p.base + id.y * p.stride + j] = bits;
}`,
});

/**
 * An invocation per (key, head): minus its Euclidean norm.
 * @param {{ keys: any }} v
 */
export function keyNorms(v) {
  const keys = readRows('keys', v.keys);
  return scoreKeys(
    keys,
    `var squares = vec4f();
  var has_nan = false;
  var has_infinity = false;
  ${keys.each(`let size = bitcast<vec4u>(x) & vec4u(0x7fffffffu);
    has_nan = has_nan || any(size > vec4u(INFINITY));
    has_infinity = has_infinity || any(size == vec4u(INFINITY));
    squares += x * x;`)}
  let sum = squares.x + squares.y + squares.z + squares.w;
  var bits = bitcast<u32>(-sqrt(sum));
  // A norm beyond the range of f32 is infinite.
  if (has_infinity || !is_finite(bitcast<u32>(sum))) { bits = INFINITY | 0x80000000u; }
  if (has_nan) { bits = NAN; }`,
  );
}

/** Tokens whose directions are added up by one workgroup. */
export const DIRECTION_PIECE = 256;

/**
 * Workgroups (256 tokens, head): sums of the keys' directions, vec4f [heads,
 * pieces, quads]. A key whose norm is not finite adds nothing.
 * @param {{ keys: any }} v
 */
export function keyDirections(v) {
  const keys = readRows('keys', v.keys);
  const { quads } = keys;
  const parts = Math.max(1, Math.floor(256 / quads));
  return {
    fields: [['n_tokens', 'u32'], ['n_pieces', 'u32'], ...keys.fields],
    buffers: [
      ...keys.buffers,
      { name: 'pieces', type: 'array<vec4f>', write: true },
    ],
    code: `
${FLOATS}
${keys.text}
var<workgroup> scales: array<f32, 256>; // 0: no direction
var<workgroup> partial: array<vec4f, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3u, @builtin(local_invocation_index) t: u32) {
  let head = id.y;
  let first = id.x * 256u;
  let n = min(256u, p.n_tokens - first);
  var scale = 0.0;
  if (t < n) {
    let row = keys_row(head, first + t);
    var squares = 0.0;
    ${keys.each('squares += dot(x, x);')}
    if (is_finite(bitcast<u32>(squares))) { scale = 1.0 / max(sqrt(squares), 1.0e-12); }
  }
  scales[t] = scale;
  workgroupBarrier();
  // Invocation (quad, part) adds the tokens part, part + ${parts}, ...
  let quad = t % ${quads}u;
  var sum = vec4f();
  if (t < ${quads * parts}u) {
    for (var i = t / ${quads}u; i < n; i += ${parts}u) {
      if (scales[i] != 0.0) { sum += scales[i] * keys_quad(keys_row(head, first + i), quad); }
    }
  }
  partial[t] = sum;
  workgroupBarrier();
  if (t < ${quads}u) {
    for (var part = 1u; part < ${parts}u; part++) { sum += partial[part * ${quads}u + t]; }
    pieces[(head * p.n_pieces + id.x) * ${quads}u + t] = sum;
  }
}`,
  };
}

/**
 * A workgroup per head: the direction of the mean, vec4f [heads, quads].
 * @param {{ quads: number }} v
 */
export function meanDirection(v) {
  return {
    fields: [
      ['n_tokens', 'u32'],
      ['n_pieces', 'u32'],
    ],
    buffers: [
      { name: 'pieces', type: 'array<vec4f>' },
      { name: 'direction', type: 'array<vec4f>', write: true },
    ],
    code: `
var<workgroup> red: array<f32, 256>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3u, @builtin(local_invocation_index) t: u32) {
  var mean = vec4f();
  if (t < ${v.quads}u) {
    for (var i = 0u; i < p.n_pieces; i++) { mean += pieces[(id.x * p.n_pieces + i) * ${v.quads}u + t]; }
    mean /= f32(p.n_tokens);
  }
  red[t] = dot(mean, mean);
  workgroupBarrier();
  ${tree(256, 'red[t] += red[t + o];')}
  if (t < ${v.quads}u) { direction[id.x * ${v.quads}u + t] = mean / max(sqrt(red[0]), 1.0e-8); }
}`,
  };
}

/**
 * An invocation per (key, head): minus its cosine with the head's direction.
 * @param {{ keys: any }} v
 */
export function keyCosines(v) {
  const keys = readRows('keys', v.keys);
  return scoreKeys(
    keys,
    `var squares = 0.0;
  var product = 0.0;
  ${keys.each(`squares += dot(x, x);
    product += dot(x, direction[id.y * ${keys.quads}u + d]);`)}
  let score = bitcast<u32>(-(product / max(sqrt(squares), 1.0e-8)));
  let bits = select(NAN, score, is_finite(bitcast<u32>(squares)));`,
    [{ name: 'direction', type: 'array<vec4f>' }],
  );
}
