// Moves rows: down to consecutive slots in place, or to another cache.
import { rowAddress, rowBuffers, rowFields } from './rows.js';

const THREADS = 64;
const AT_ONCE = 8; // rows in flight per invocation

// A column is 16 bytes of a row, or what is left of it.
const columnsOf = (v) => Math.ceil(v.words / 4);

/** @param {any} v @returns {number} Workgroups for the columns of n heads. */
export const columnGroups = (v, nHeads) => Math.ceil((columnsOf(v) * nHeads) / THREADS);

// fn NAME_load(row, column) and NAME_store(row, column, bytes).
function columnText(name, v, write) {
  if (v.wide) {
    return `
fn ${name}_load(row: u32, column: u32) -> vec4u { return ${name}[row + column]; }
${write ? `fn ${name}_store(row: u32, column: u32, bytes: vec4u) { ${name}[row + column] = bytes; }` : ''}`;
  }
  const rest = v.words % 4;
  const guard = (i, text) =>
    rest !== 0 && i >= rest ? `if (column < ${columnsOf(v) - 1}u) { ${text} }` : text;
  const at = (i) => `${name}[row + 4u * column + ${i}u]`;
  const each = (text) => [0, 1, 2, 3].map((i) => guard(i, text(i))).join('\n  ');
  return `
fn ${name}_load(row: u32, column: u32) -> vec4u {
  var bytes = vec4u();
  ${each((i) => `bytes[${i}] = ${at(i)};`)}
  return bytes;
}
${
  write
    ? `fn ${name}_store(row: u32, column: u32, bytes: vec4u) {
  ${each((i) => `${at(i)} = bytes[${i}];`)}
}`
    : ''
}`;
}

const keepFields = [
  ['n_heads', 'u32'],
  ['n_keep', 'u32'],
  ['keep_base', 'u32'],
  ['keep_stride', 'u32'], // 0: one list for all heads
];

/**
 * An invocation per column of a head: no other reads or writes it, so it may
 * walk the survivors upward without an order between workgroups. Row keep[i]
 * goes to slot i.
 * @param {{ rows: any }} v
 */
export function compactRows(v) {
  const each = (line) => Array.from({ length: AT_ONCE }, (_, i) => line(i)).join('\n    ');
  return {
    fields: [...keepFields, ...rowFields('rows')],
    buffers: [...rowBuffers('rows', v.rows, 'vec4u', true), { name: 'keep', type: 'array<u32>' }],
    code: `
${rowAddress('rows', v.rows)}
${columnText('rows', v.rows, true)}
@compute @workgroup_size(${THREADS})
fn main(@builtin(global_invocation_id) id: vec3u) {
  let head = id.x / ${columnsOf(v.rows)}u;
  let column = id.x % ${columnsOf(v.rows)}u;
  if (head >= p.n_heads) { return; }
  let list = p.keep_base + head * p.keep_stride;
  // Rows that stay where they are come first: keep ascends.
  var i = 0u;
  var end = p.n_keep;
  while (i < end) {
    let middle = (i + end) / 2u;
    if (keep[list + middle] == middle) { i = middle + 1u; } else { end = middle; }
  }
  for (; i + ${AT_ONCE}u <= p.n_keep; i += ${AT_ONCE}u) {
    ${each((u) => `let b${u} = rows_load(rows_row(head, keep[list + i + ${u}u]), column);`)}
    ${each((u) => `rows_store(rows_row(head, i + ${u}u), column, b${u});`)}
  }
  for (; i < p.n_keep; i++) {
    rows_store(rows_row(head, i), column, rows_load(rows_row(head, keep[list + i]), column));
  }
}`,
  };
}

/**
 * An invocation per (column of a head, 8 survivors): copies row keep[i] of one
 * plane to slot p.first_slot + i of another.
 * @param {{ from: any, to: any }} v
 */
export function gatherRows(v) {
  return {
    fields: [
      ...keepFields,
      ['first_slot', 'u32'],
      ...rowFields('source'),
      ...rowFields('destination'),
    ],
    buffers: [
      ...rowBuffers('source', v.from, 'vec4u'),
      ...rowBuffers('destination', v.to, 'vec4u', true),
      { name: 'keep', type: 'array<u32>' },
    ],
    code: `
${rowAddress('source', v.from)}
${columnText('source', v.from, false)}
${rowAddress('destination', v.to)}
${columnText('destination', v.to, true)}
@compute @workgroup_size(${THREADS})
fn main(@builtin(global_invocation_id) id: vec3u) {
  let head = id.x / ${columnsOf(v.from)}u;
  let column = id.x % ${columnsOf(v.from)}u;
  if (head >= p.n_heads) { return; }
  let list = p.keep_base + head * p.keep_stride;
  let end = min(id.y * ${AT_ONCE}u + ${AT_ONCE}u, p.n_keep);
  for (var i = id.y * ${AT_ONCE}u; i < end; i++) {
    destination_store(destination_row(head, p.first_slot + i), column, source_load(source_row(head, keep[list + i]), column));
  }
}`,
  };
}

/** @param {number} nKeep  Workgroups of `gatherRows` in y. */
export const gatherGroups = (nKeep) => Math.ceil(nKeep / AT_ONCE);
