// Pooling along the tokens, and reduction of several rows of scores to one.
import { FLOATS } from './rows.js';

/**
 * An invocation per (score, row): the mean, maximum or sum over p.n_terms
 * adjacent rows of the pooled scores. Scores from p.n_scored on become
 * +infinity. NaN in, NaN out.
 * @param {{ pool: 'none' | 'avg' | 'max', reduce: 'mean' | 'max' | 'sum' }} v
 */
export function shapeScores(v) {
  const larger = `fn larger(a: u32, b: u32) -> u32 {
  if (is_nan(a) || is_nan(b)) { return NAN; }
  return select(b, a, order(a) > order(b));
}
// Larger floats have larger numbers.
fn order(bits: u32) -> u32 { return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u); }`;
  // Sums of infinities are not left to the GPU's floats.
  const added = `fn added(a: u32, b: u32) -> u32 {
  if (is_nan(a) || is_nan(b)) { return NAN; }
  if (!is_finite(a)) { return select(a, NAN, !is_finite(b) && a != b); }
  if (!is_finite(b)) { return b; }
  return bitcast<u32>(bitcast<f32>(a) + bitcast<f32>(b));
}
fn scaled(a: u32, by: f32) -> u32 {
  if (!is_finite(a)) { return a; }
  return bitcast<u32>(bitcast<f32>(a) * by);
}`;
  const join = (isMax) => (isMax ? 'larger' : 'added');
  const pooled =
    v.pool === 'none'
      ? 'return source[at + j];'
      : `
  let begin = j - min(j, p.half_width);
  let end = min(j + p.half_width + 1u, p.n_scored);
  var value = source[at + begin];
  for (var i = begin + 1u; i < end; i++) { value = ${join(v.pool === 'max')}(value, source[at + i]); }
  return ${v.pool === 'max' ? 'value' : 'scaled(value, inverses[select(p.width, end - begin, p.shrinks != 0u)])'};`;
  return {
    fields: [
      ['n_tokens', 'u32'],
      ['n_scored', 'u32'],
      ['n_terms', 'u32'],
      ['from_base', 'u32'],
      ['from_stride', 'u32'],
      ['to_base', 'u32'],
      ['to_stride', 'u32'],
      ['half_width', 'u32'],
      ['width', 'u32'],
      ['shrinks', 'u32'],
      ['scale', 'f32'],
    ],
    buffers: [
      { name: 'source', type: 'array<u32>' },
      { name: 'destination', type: 'array<u32>', write: true },
      ...(v.pool === 'avg' ? [{ name: 'inverses', type: 'array<f32>' }] : []),
    ],
    code: `
${FLOATS}
${larger}
${added}
fn pooled(at: u32, j: u32) -> u32 {${pooled}
}
@compute @workgroup_size(128)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let j = id.x;
  if (j >= p.n_tokens) { return; }
  let out = p.to_base + id.y * p.to_stride + j;
  if (j >= p.n_scored) { destination[out] = INFINITY; return; }
  let first = p.from_base + id.y * p.n_terms * p.from_stride;
  var value = pooled(first, j);
  for (var term = 1u; term < p.n_terms; term++) {
    value = ${join(v.reduce === 'max')}(value, pooled(first + term * p.from_stride, j));
  }
  destination[out] = ${v.reduce === 'mean' ? 'scaled(value, p.scale)' : 'value'};
}`,
  };
}
