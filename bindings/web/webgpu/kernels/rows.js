// How kernels read rows: text that a kernel includes, once per plane.

/**
 * @typedef {object} RowVariant
 * @property {'f32' | 'f16' | 'opaque'} dtype
 * @property {number} dim  Elements of a row.
 * @property {number} words  32-bit words of a row.
 * @property {boolean} wide  Whether rows are read 4 elements at a time.
 * @property {boolean} paged
 */

const STEPS = ['base', 'head', 'token', 'block', 'block_size', 'table', 'table_head'];

/** @param {string} name @returns {string[][]} */
export const rowFields = (name) => STEPS.map((step) => [`${name}_${step}`, 'u32']);

/** @param {string} name @param {Record<string, number>} params */
export const rowParams = (name, params) =>
  Object.fromEntries(STEPS.map((step) => [`${name}_${step}`, params[step]]));

/** @param {string} name @param {RowVariant} v @param {string} wideType @param {boolean} [write] */
export const rowBuffers = (name, v, wideType, write = false) => [
  { name, type: `array<${v.wide ? wideType : 'u32'}>`, write },
  ...(v.paged ? [{ name: `${name}_table`, type: 'array<u32>' }] : []),
];

/** @param {RowVariant} v */
export const quadsOf = (v) => Math.ceil(v.dim / 4);

/** fn NAME_row(head, slot): where a row begins. @param {string} name @param {RowVariant} v */
export function rowAddress(name, v) {
  const inHead = `p.${name}_base + head * p.${name}_head`;
  return v.paged
    ? `fn ${name}_row(head: u32, slot: u32) -> u32 {
  let block = ${name}_table[p.${name}_table + head * p.${name}_table_head + slot / p.${name}_block_size];
  return ${inHead} + block * p.${name}_block + (slot % p.${name}_block_size) * p.${name}_token;
}`
    : `fn ${name}_row(head: u32, slot: u32) -> u32 {
  return ${inHead} + slot * p.${name}_token;
}`;
}

/**
 * fn NAME_quad(row, i): elements 4 i .. 4 i + 3 of a row, 0 behind its end.
 * @param {string} name
 * @param {RowVariant} v
 */
function rowQuads(name, v) {
  const head = `fn ${name}_quad(row: u32, i: u32) -> vec4f {`;
  if (v.wide) {
    return v.dtype === 'f32'
      ? `${head} return bitcast<vec4f>(${name}[row + i]); }`
      : `${head}
  let two = ${name}[row + i];
  return vec4f(unpack2x16float(two.x), unpack2x16float(two.y));
}`;
  }
  const perQuad = v.dtype === 'f32' ? 4 : 2;
  const rest = v.words % perQuad;
  const at = (j) => `${name}[row + ${perQuad}u * i + ${j}u]`;
  const quad = (n) => {
    const parts = [];
    for (let j = 0; j < perQuad; j++) {
      if (v.dtype === 'f32') parts.push(j < n ? `bitcast<f32>(${at(j)})` : '0.0');
      else parts.push(j < n ? `unpack2x16float(${at(j)})` : 'vec2f()');
    }
    return `vec4f(${parts.join(', ')})`;
  };
  const last = rest === 0 ? '' : `if (i == ${quadsOf(v) - 1}u) { return ${quad(rest)}; }`;
  return `${head}
  ${last}
  return ${quad(perQuad)};
}`;
}

/**
 * Rows that a kernel reads 4 elements at a time.
 * @param {string} name
 * @param {RowVariant} v
 */
export function readRows(name, v) {
  const quads = quadsOf(v);
  return {
    quads,
    fields: rowFields(name),
    buffers: rowBuffers(name, v, v.dtype === 'f32' ? 'vec4u' : 'vec2u'),
    text: `${rowAddress(name, v)}\n${rowQuads(name, v)}`,
    /** A loop over the quads `x`, of number d, of the row that begins at `row`. @param {string} body */
    each: (body) => `for (var d = 0u; d < ${quads}u; d++) {
      let x = ${name}_quad(row, d);
      ${body}
    }`,
  };
}

// NaN and infinity are told by their bits, since WGSL lets a compiler assume
// that floats are finite.
export const FLOATS = `
const NAN = 0x7fc00000u;
const INFINITY = 0x7f800000u;
fn is_nan(bits: u32) -> bool { return (bits & 0x7fffffffu) > INFINITY; }
fn is_finite(bits: u32) -> bool { return (bits & INFINITY) != INFINITY; }
fn all_finite(v: vec4f) -> bool {
  let exponents = bitcast<vec4u>(v) & vec4u(INFINITY);
  return all(exponents != vec4u(INFINITY));
}
`;

/**
 * A tree over n invocations, for text with `o` of them still at work.
 * @param {number} n  A power of 2.
 * @param {string} step
 */
export const tree = (n, step) => `for (var o = ${n / 2}u; o > 0u; o >>= 1u) {
    if (t < o) { ${step} }
    workgroupBarrier();
  }`;
