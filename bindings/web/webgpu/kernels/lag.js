// Scores keys and values by how far they stand out from those after them.
import { FLOATS, readRows, tree } from './rows.js';

/** The longest partition, whose numbers lie in workgroup memory. */
export const MOST_LAG_BLOCK = 1024;
/** The most elements of a row, likewise. */
export const MOST_LAG_DIM = 512;

const THREADS = 128;

// Ranges of the next partition's channels, and how far each token of this one
// spreads on their scale. The shift by 1/2 changes no spread and keeps small
// what is subtracted.
const spreadText = (name, v, rows) => `
fn ${name}_spreads(head: u32, first: u32, t: u32, into: u32) {
  for (var quad = t; quad < ${rows.quads}u; quad += ${THREADS}u) {
    var low = vec4f(3.4028234e38);
    var high = vec4f(-3.4028234e38);
    for (var i = 0u; i < p.block; i++) {
      let x = ${name}_quad(${name}_row(head, first + p.block + i), quad);
      let size = bitcast<vec4u>(x) & vec4u(0x7fffffffu);
      let is_number = size <= vec4u(INFINITY); // NaN is ignored
      low = select(low, min(low, x), is_number);
      high = select(high, max(high, x), is_number);
    }
    let range = high - low;
    let inverse = vec4f(1.0) / range;
    let is_range = (range > vec4f()) &
        ((bitcast<vec4u>(range) & vec4u(INFINITY)) != vec4u(INFINITY)) &
        ((bitcast<vec4u>(inverse) & vec4u(INFINITY)) != vec4u(INFINITY));
    least[quad] = select(vec4f(), low, is_range);
    scale[quad] = select(vec4f(), inverse, is_range);
  }
  workgroupBarrier();
  for (var i = t; i < p.block; i += ${THREADS}u) {
    let row = ${name}_row(head, first + i);
    var sum = 0.0;
    var squares = 0.0;
    var bad = false;
    ${rows.each(`bad = bad || !all_finite(x);
      var y = (x - least[d]) * scale[d] - vec4f(0.5);
      ${
        v.dim % 4 === 0
          ? ''
          : `if (d == ${rows.quads - 1}u) { y *= vec4f(${[0, 1, 2, 3].map((j) => (j < v.dim % 4 ? '1.0' : '0.0')).join(', ')}); }`
      }
      sum += y.x + y.y + y.z + y.w;
      squares += dot(y, y);`)}
    let rest = max(squares - sum * sum / ${v.dim}.0, 0.0);
    let spread = ${v.dim === 1 ? '0.0' : `sqrt(rest / ${v.dim - 1}.0)`};
    bad = bad || !is_finite(bitcast<u32>(squares)) || !is_finite(bitcast<u32>(spread));
    numbers[into + i] = select(bitcast<u32>(spread), NAN, bad);
  }
  workgroupBarrier();
  soften(t, into);
}`;

/**
 * Workgroups (partition, head): scores of the partitions but the last whole
 * one, in [0, 1). p.ranks 0: the means, not the ranks. v.capacity: at least
 * p.block.
 * @param {{ keys: any, values: any, capacity: number }} v
 */
export function lagPartitions(v) {
  const keys = readRows('keys', v.keys);
  const values = readRows('values', v.values);
  const quads = Math.max(keys.quads, values.quads);
  return {
    fields: [
      ['block', 'u32'],
      ['ranks', 'u32'],
      ['first', 'u32'],
      ['base', 'u32'],
      ['stride', 'u32'],
      ['unit', 'f32'],
      ...keys.fields,
      ...values.fields,
    ],
    buffers: [
      ...keys.buffers,
      ...values.buffers,
      { name: 'scores', type: 'array<u32>', write: true },
    ],
    code: `
${FLOATS}
${keys.text}
${values.text}
var<workgroup> least: array<vec4f, ${quads}>;
var<workgroup> scale: array<vec4f, ${quads}>;
// Bits, of keys and then of values: spreads, then their softmax, NaN left out.
var<workgroup> numbers: array<u32, ${2 * v.capacity}>;
var<workgroup> red: array<f32, ${THREADS}>;

fn soften(t: u32, into: u32) {
  var greatest = 0.0;
  for (var i = t; i < p.block; i += ${THREADS}u) {
    let bits = numbers[into + i];
    if (bits != NAN) { greatest = max(greatest, bitcast<f32>(bits)); }
  }
  red[t] = greatest;
  workgroupBarrier();
  ${tree(THREADS, 'red[t] = max(red[t], red[t + o]);')}
  greatest = red[0];
  workgroupBarrier();
  var sum = 0.0;
  for (var i = t; i < p.block; i += ${THREADS}u) {
    let bits = numbers[into + i];
    if (bits != NAN) {
      let weight = exp(bitcast<f32>(bits) - greatest);
      numbers[into + i] = bitcast<u32>(weight);
      sum += weight;
    }
  }
  red[t] = sum;
  workgroupBarrier();
  ${tree(THREADS, 'red[t] += red[t + o];')}
  sum = red[0];
  workgroupBarrier();
  for (var i = t; i < p.block; i += ${THREADS}u) {
    let bits = numbers[into + i];
    if (bits != NAN) { numbers[into + i] = bitcast<u32>(bitcast<f32>(bits) / sum); }
  }
  workgroupBarrier();
}
${spreadText('keys', v.keys, keys)}
${spreadText('values', v.values, values)}

@compute @workgroup_size(${THREADS})
fn main(@builtin(workgroup_id) id: vec3u, @builtin(local_invocation_index) t: u32) {
  let head = id.y;
  let first = p.first + id.x * p.block;
  keys_spreads(head, first, t, 0u);
  values_spreads(head, first, t, p.block);
  for (var i = t; i < p.block; i += ${THREADS}u) {
    let of_key = numbers[i];
    let of_value = numbers[p.block + i];
    let mean = 0.5 * (bitcast<f32>(of_key) + bitcast<f32>(of_value));
    numbers[i] = select(bitcast<u32>(mean), NAN, of_key == NAN || of_value == NAN);
  }
  workgroupBarrier();
  for (var i = t; i < p.block; i += ${THREADS}u) {
    let own = numbers[i];
    var score = own;
    if (p.ranks != 0u) {
      // Bits of floats that are not negative ascend with them; NaN is lower. The
      // earlier of two equal ones ranks higher.
      var below = 0u;
      for (var j = 0u; j < p.block; j++) {
        let other = numbers[j];
        if (other == NAN || other < own || (other == own && j > i)) { below++; }
      }
      score = bitcast<u32>(f32(below) * p.unit);
    }
    scores[p.base + head * p.stride + first + i] = select(score, NAN, own == NAN);
  }
}`,
  };
}

/**
 * An invocation per (slot, head): what partitions leave, 1; without two whole
 * partitions the place behind the sinks / their number.
 */
export function lagRest() {
  return {
    fields: [
      ['n_tokens', 'u32'],
      ['n_sink', 'u32'],
      ['first_rest', 'u32'],
      ['is_short', 'u32'],
      ['base', 'u32'],
      ['stride', 'u32'],
      ['unit', 'f32'],
    ],
    buffers: [{ name: 'scores', type: 'array<f32>', write: true }],
    code: `
@compute @workgroup_size(128)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let j = id.x;
  if (j >= p.n_tokens || (j >= p.n_sink && j < p.first_rest)) { return; }
  var score = 1.0;
  if (j >= p.n_sink && p.is_short != 0u) { score = f32(j - p.n_sink) * p.unit; }
  scores[p.base + id.y * p.stride + j] = score;
}`,
  };
}
