// Attention of the last queries: the exact softmax in two passes over the keys.
//
// The first finds each query row's greatest logit and the sum of exponentials,
// for pieces of the keys, which `windowSums` puts together. The second adds up
// the weights that each key gets. Both have a tile of query rows in workgroup
// memory, and an invocation multiplies all of them with one key at a time.
import { FLOATS, readRows, tree } from './rows.js';

/** Invocations of a workgroup, one key each. */
export const WINDOW_KEYS = 128;
/** Keys of a piece of the first pass. */
export const WINDOW_PIECE = 1024;

/**
 * Query rows that are in workgroup memory at once, at most 8 KiB.
 * @param {number} window
 * @param {number} dim
 */
export function rowsAtOnce(window, dim) {
  let n = 8;
  while (n > 1 && (n / 2 >= window || n * Math.ceil(dim / 4) * 16 > 8192)) n /= 2;
  return n;
}

const range = (n) => Array.from({ length: n }, (_, i) => i);
const lines = (n, line) => range(n).map(line).join('\n    ');

// What both passes have: `text` declares a tile of query rows and loads it, `products`
// multiplies it with one key.
function windowTile(v) {
  const keys = readRows('keys', v.keys);
  const queries = readRows('queries', v.queries);
  const { quads } = keys;
  const text = `
${FLOATS}
${keys.text}
${queries.text}
var<workgroup> tile: array<vec4f, ${v.rows * quads}>;

// Rows first_row .. of a query head; zeros behind the window.
fn load_tile(query_head: u32, first_row: u32, t: u32) {
  for (var i = t; i < ${v.rows * quads}u; i += ${WINDOW_KEYS}u) {
    let row = first_row + i / ${quads}u;
    var elements = vec4f();
    if (row < p.window) {
      elements = queries_quad(queries_row(query_head, p.first_query + row), i % ${quads}u);
    }
    tile[i] = elements;
  }
}

fn logit(product: f32) -> f32 {
  let x = product * p.scale;
  if (p.softcap == 0.0) { return x; }
  // tanh, by an exponential that cannot overflow.
  let t = exp(-2.0 * abs(x));
  return select(sign(x) * p.softcap * (1.0 - t) / (1.0 + t), x, is_nan(bitcast<u32>(x)));
}
`;
  const products = `
    ${lines(v.rows, (i) => `var s${i} = 0.0;`)}
    ${keys.each(lines(v.rows, (i) => `s${i} += dot(tile[${i * quads}u + d], x);`))}`;
  const fields = (more) => [
    ['n_tokens', 'u32'],
    ['window', 'u32'],
    ['group', 'u32'],
    ['first_query', 'u32'],
    ['n_pieces', 'u32'],
    ['scale', 'f32'],
    ['softcap', 'f32'],
    ...more,
    ...keys.fields,
    ...queries.fields,
  ];
  return { text, products, fields, buffers: [...keys.buffers, ...queries.buffers] };
}

/**
 * Workgroups (piece, tile of query rows, query head). Writes for each query
 * row and piece the bits of the greatest logit m and of the sum of e^(x - m),
 * and whether the row sees NaN or +infinity.
 * @param {{ keys: any, queries: any, rows: number }} v
 */
export function windowPieces(v) {
  const reduce = (join) =>
    tree(
      WINDOW_KEYS,
      `for (var i = t; i < ${v.rows * WINDOW_KEYS}u; i += ${WINDOW_KEYS}u) { ${join('red[i]', 'red[i + o]')} }`,
    );
  const tile = windowTile(v);
  return {
    fields: tile.fields([]),
    buffers: [
      ...tile.buffers,
      { name: 'pieces', type: 'array<vec4u>', write: true },
    ],
    code: `
${tile.text}
const LOWEST = -3.4028234e38;
var<workgroup> red: array<f32, ${v.rows * WINDOW_KEYS}>;
var<workgroup> bad: atomic<u32>; // a bit per row

struct Row { m: f32, sum: f32 };
fn add(to: Row, x: f32) -> Row {
  if (!is_finite(bitcast<u32>(x))) { return to; } // -infinity: no weight
  if (x > to.m) { return Row(x, to.sum * exp(to.m - x) + 1.0); }
  return Row(to.m, to.sum + exp(x - to.m));
}
fn spoils(x: f32) -> bool {
  let bits = bitcast<u32>(x);
  return is_nan(bits) || bits == INFINITY;
}

@compute @workgroup_size(${WINDOW_KEYS})
fn main(@builtin(workgroup_id) id: vec3u, @builtin(local_invocation_index) t: u32) {
  let query_head = id.z;
  let head = query_head / p.group;
  let first_row = id.y * ${v.rows}u;
  load_tile(query_head, first_row, t);
  workgroupBarrier();
  ${lines(v.rows, (i) => `var r${i} = Row(LOWEST, 0.0);`)}
  var spoilt = 0u;
  // Row w sees the keys before past + w + 1.
  let past = p.n_tokens - p.window;
  let end = min((id.x + 1u) * ${WINDOW_PIECE}u, min(p.n_tokens, past + first_row + ${v.rows}u));
  for (var j = id.x * ${WINDOW_PIECE}u + t; j < end; j += ${WINDOW_KEYS}u) {
    let row = keys_row(head, j);
    ${tile.products}
    ${lines(
      v.rows,
      (i) => `if (j <= past + first_row + ${i}u) {
      let x = logit(s${i});
      if (spoils(x)) { spoilt |= ${1 << i}u; } else { r${i} = add(r${i}, x); }
    }`,
    )}
  }
  atomicOr(&bad, spoilt);
  ${lines(v.rows, (i) => `red[${i * WINDOW_KEYS}u + t] = r${i}.m;`)}
  workgroupBarrier();
  ${reduce((a, b) => `${a} = max(${a}, ${b});`)}
  ${lines(v.rows, (i) => `let m${i} = red[${i * WINDOW_KEYS}u];`)}
  workgroupBarrier();
  ${lines(v.rows, (i) => `red[${i * WINDOW_KEYS}u + t] = r${i}.sum * exp(r${i}.m - m${i});`)}
  workgroupBarrier();
  ${reduce((a, b) => `${a} += ${b};`)}
  if (t == 0u) {
    let is_bad = atomicLoad(&bad);
    ${lines(
      v.rows,
      (i) => `if (first_row + ${i}u < p.window) {
      pieces[(query_head * p.window + first_row + ${i}u) * p.n_pieces + id.x] =
          vec4u(bitcast<u32>(m${i}), bitcast<u32>(red[${i * WINDOW_KEYS}u]), (is_bad >> ${i}u) & 1u, 0u);
    }`,
    )}
  }
}`,
  };
}

/**
 * An invocation per query row: the greatest logit and 1 / the sum, as bits; NaN
 * for a row that has no finite weights.
 */
export function windowSums() {
  return {
    fields: [
      ['n_rows', 'u32'],
      ['n_pieces', 'u32'],
    ],
    buffers: [
      { name: 'pieces', type: 'array<vec4u>' },
      { name: 'sums', type: 'array<vec2u>', write: true },
    ],
    code: `
${FLOATS}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let row = id.x;
  if (row >= p.n_rows) { return; }
  var m = -3.4028234e38;
  var bad = false;
  for (var i = 0u; i < p.n_pieces; i++) {
    let piece = pieces[row * p.n_pieces + i];
    if (piece.z != 0u) { bad = true; }
    m = max(m, bitcast<f32>(piece.x));
  }
  var sum = 0.0;
  for (var i = 0u; i < p.n_pieces; i++) {
    let piece = pieces[row * p.n_pieces + i];
    sum += bitcast<f32>(piece.y) * exp(bitcast<f32>(piece.x) - m);
  }
  let inverse = bitcast<u32>(1.0 / max(sum, 1.0e-30));
  sums[row] = vec2u(bitcast<u32>(m), select(inverse, NAN, bad || sum == 0.0));
}`,
  };
}

/**
 * Workgroups (128 keys, KV head). Writes each key's weight, reduced over the
 * window's rows and, unless v.perQueryHead, over the group's query heads.
 * @param {{ keys: any, queries: any, rows: number, perQueryHead: boolean,
 *   maxOfRows: boolean, group: 'mean' | 'max' | 'sum' }} v
 */
export function windowWeights(v) {
  const write = (index, bad, value) =>
    `if (j < p.n_scored) { scores[p.base + ${index} * p.stride + j] = select(bitcast<u32>(${value}), NAN, ${bad}); }`;
  const tile = windowTile(v);
  return {
    fields: tile.fields([
      ['n_scored', 'u32'],
      ['base', 'u32'],
      ['stride', 'u32'],
      ['row_scale', 'f32'],
      ['group_scale', 'f32'],
    ]),
    buffers: [
      ...tile.buffers,
      { name: 'sums', type: 'array<vec2u>' },
      { name: 'scores', type: 'array<u32>', write: true },
    ],
    code: `
${tile.text}
var<workgroup> row_sums: array<vec2u, ${v.rows}>;

@compute @workgroup_size(${WINDOW_KEYS})
fn main(@builtin(workgroup_id) id: vec3u, @builtin(local_invocation_index) t: u32) {
  let head = id.y;
  let j = id.x * ${WINDOW_KEYS}u + t;
  let past = p.n_tokens - p.window;
  let row = keys_row(head, min(j, p.n_tokens - 1u));
  // Earlier rows see none of the workgroup's keys.
  let first_seeing = max(id.x * ${WINDOW_KEYS}u, past) - past;
  var of_group = 0.0;
  var is_bad = false;
  for (var g = 0u; g < p.group; g++) {
    let query_head = head * p.group + g;
    var of_head = 0.0;
    var head_bad = false;
    for (var first_row = first_seeing - first_seeing % ${v.rows}u; first_row < p.window; first_row += ${v.rows}u) {
      workgroupBarrier();
      load_tile(query_head, first_row, t);
      if (t < ${v.rows}u) {
        row_sums[t] = sums[query_head * p.window + min(first_row + t, p.window - 1u)];
      }
      workgroupBarrier();
      ${tile.products}
      ${lines(
        v.rows,
        (i) => `if (first_row + ${i}u < p.window && j <= past + first_row + ${i}u) {
        let of_row = row_sums[${i}];
        if (of_row.y == NAN) { head_bad = true; }
        let x = logit(s${i});
        if (is_finite(bitcast<u32>(x))) {
          let weight = exp(x - bitcast<f32>(of_row.x)) * bitcast<f32>(of_row.y);
          of_head = ${v.maxOfRows ? 'max(of_head, weight)' : 'of_head + weight'};
        }
      }`,
      )}
    }
    of_head *= p.row_scale;
    ${v.perQueryHead ? write('query_head', 'head_bad', 'of_head') : ''}
    of_group = ${v.group === 'max' ? 'max(of_group, of_head)' : 'of_group + of_head'};
    is_bad = is_bad || head_bad;
  }
  ${v.perQueryHead ? '' : write('head', 'is_bad', 'of_group * p.group_scale')}
}`,
  };
}
