// Tiny decoders with random weights as ONNX files, of every kind that the adapter knows.
import { join, write, writeFloat } from "../src/protobuf.js";

const [FLOAT, INT64, INT32, BOOL, FLOAT16] = [1, 7, 6, 9, 10];

class Graph {
  nodes = [];
  tensors = [];
  inputs = [];
  outputs = [];
  #names = 0;

  node(op, inputs, attributes = {}, outputs = [`t${this.#names++}`], domain = "") {
    const fields = inputs.map((name) => write(1, name));
    for (const name of outputs) fields.push(write(2, name));
    fields.push(write(4, op));
    for (const [name, value] of Object.entries(attributes)) {
      const list = Array.isArray(value);
      const whole = Number.isInteger(value);
      fields.push(write(5, [
        write(1, name),
        ...(list ? value.map((one) => write(8, one)) : [whole ? write(3, value) : writeFloat(2, value)]),
        write(20, list ? 7 : whole ? 2 : 1),
      ]));
    }
    if (domain !== "") fields.push(write(7, domain));
    this.nodes.push(write(1, fields));
    return outputs[0];
  }

  #tensor(type, data, dims, name = `c${this.#names++}`) {
    this.tensors.push(write(5, [...dims.map((dim) => write(1, dim)), write(2, type), write(8, name),
      write(9, new Uint8Array(data.buffer))]));
    return name;
  }

  floats(values, dims = [values.length]) {
    return this.#tensor(FLOAT, Float32Array.from(values), dims);
  }

  halves(values, dims) {
    const bits = (x) => {
      // To the nearest; numbers below 2 ** -14 are multiples of 2 ** -24.
      const exponent = Math.max(-14, Math.floor(Math.log2(Math.abs(x) || 1)));
      const steps = Math.round(Math.abs(x) * 2 ** (10 - exponent));
      return (x < 0 ? 0x8000 : 0) + ((exponent + 14) << 10) + steps;
    };
    return this.#tensor(FLOAT16, Uint16Array.from(values, bits), dims);
  }

  list(...values) {
    return this.#tensor(INT64, BigInt64Array.from(values, BigInt), [values.length]);
  }

  number(value) {
    return this.#tensor(INT64, BigInt64Array.of(BigInt(value)), []);
  }

  #value(number, name, type, dims) {
    return write(number, [write(1, name), write(2, [write(1, [write(1, type), write(2,
      dims.map((dim) => write(1, [typeof dim === "number" ? write(1, dim) : write(2, dim)])))])])]);
  }

  input(name, type, ...dims) {
    this.inputs.push(this.#value(11, name, type, dims));
    return name;
  }

  output(name, type, ...dims) {
    this.outputs.push(this.#value(12, name, type, dims));
  }

  finish() {
    const opset = (domain, version) => write(8, [write(1, domain), write(2, version)]);
    return join([write(1, 8), opset("", 17), opset("com.microsoft", 1),
      write(7, [...this.nodes, write(2, "decoder"), ...this.tensors, ...this.inputs, ...this.outputs])]);
  }
}

export const defaults = { layers: 2, heads: 4, kvHeads: 2, dim: 16, vocabulary: 256, kind: "decomposed",
  maxPositions: 1024 };

// Whether a graph rotates keys by the length of its cache.
export const isByLength = ({ kind }) => kind === "gqa" || kind === "gqa-packed";

// Matrices as lists of rows, row by row.
export function makeWeights(options = {}) {
  const { layers, heads, kvHeads, dim, vocabulary } = { ...defaults, ...options };
  const width = heads * dim;
  let seed = 1;
  const matrix = (rows, columns, spread) => Float32Array.from({ length: rows * columns }, () => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return (seed / 2 ** 31 - 1) * spread;
  });
  const deep = 1 / Math.sqrt(width);
  return {
    embedding: matrix(vocabulary, width, 1),
    layers: Array.from({ length: layers }, () => ({
      q: matrix(width, width, 2 * deep), k: matrix(width, kvHeads * dim, 2 * deep),
      v: matrix(width, kvHeads * dim, 2 * deep), o: matrix(width, width, 0.6 * deep),
    })),
    head: matrix(width, vocabulary, 1.7 * deep),
  };
}

// `kind`: "decomposed" takes position_ids; "gqa" is GroupQueryAttention that rotates by length,
// "gqa-packed" the same with q, k and v in one tensor; "gqa-positions" takes q and k that
// RotaryEmbedding turned by position_ids; "mha" is MultiHeadAttention, with as many kvHeads as
// heads; "unknown" does something to the keys that no exporter does, "none" has no positions.
// With `halfCache` keys and values of "decomposed" are stored in f16.
// `softcap`, `local` (a window), `isHalf` (the table of rotations) and `hasBias` are for graphs
// that are only read, not run.
export function makeDecoder(options = {}) {
  const { layers, heads, kvHeads, dim, vocabulary, kind, maxPositions, softcap, local = -1, isHalf,
          hasBias, halfCache } = { ...defaults, ...options };
  const weights = makeWeights(options);
  const g = new Graph();
  const width = heads * dim;
  const byLength = isByLength({ kind });
  const hasPositions = !byLength && kind !== "none";

  g.input("input_ids", INT64, "batch_size", "new");
  g.input("attention_mask", INT64, "batch_size", "all");
  if (hasPositions) g.input("position_ids", INT64, "batch_size", "new");

  const angle = (p, f) => p * 10000 ** (-2 * f / dim);
  const table = (of, columns) => (isHalf ? g.halves : g.floats).call(g,
    Array.from({ length: maxPositions * columns }, (_, i) =>
      of(angle(Math.floor(i / columns), i % columns % (dim / 2)))), [maxPositions, columns]);
  const [cosCache, sinCache] = kind.startsWith("gqa") || kind === "mha"
    ? [table(Math.cos, dim / 2), table(Math.sin, dim / 2)] : [];

  // What GroupQueryAttention wants of the mask.
  const lengths = () => {
    const sums = g.node("ReduceSum", ["attention_mask", g.list(1)], { keepdims: 0 });
    const last = g.node("Cast", [g.node("Sub", [sums, g.list(1)])], { to: INT32 });
    const all = g.node("Gather", [g.node("Shape", ["attention_mask"]), g.number(1)]);
    return [last, g.node("Cast", [all], { to: INT32 })];
  };
  // 0 where a token sees a slot, else a large negative number: [batch, 1, new, all].
  const bias = () => {
    const [zero, one] = [g.number(0), g.number(1)];
    const all = g.node("Gather", [g.node("Shape", ["attention_mask"]), one]);
    const added = g.node("Gather", [g.node("Shape", ["input_ids"]), one]);
    const own = g.node("Unsqueeze",
      [g.node("Range", [g.node("Sub", [all, added]), all, one]), g.list(1)]);
    const causal = g.node("LessOrEqual", [g.node("Range", [zero, all, one]), own]);
    const shown = g.node("Unsqueeze", [g.node("Cast", ["attention_mask"], { to: BOOL }), g.list(1, 2)]);
    return g.node("Where", [g.node("And", [causal, shown]), g.floats([0]), g.floats([-1e9])]);
  };
  const [last, total] = kind.startsWith("gqa") ? lengths() : [];
  const mask = kind.startsWith("gqa") ? "" : bias();

  const split = (x, n) => g.node("Transpose", [g.node("Reshape", [x, g.list(0, 0, n, dim)])],
    { perm: [0, 2, 1, 3] });
  const merge = (x) => g.node("Reshape",
    [g.node("Transpose", [x], { perm: [0, 2, 1, 3] }), g.list(0, 0, -1)]);
  const rows = (cache) => g.node("Unsqueeze",
    [g.node("Gather", [cache, "position_ids"]), g.list(1)]);
  let cos, sin;
  const rotated = (x) => { // by hand, as exporters write it
    if (!hasPositions) return x;
    cos ??= rows(table(Math.cos, dim));
    sin ??= rows(table(Math.sin, dim));
    const part = (from, to) => g.node("Slice", [x, g.list(from), g.list(to), g.list(3)]);
    const turned = g.node("Concat", [g.node("Neg", [part(dim / 2, dim)]), part(0, dim / 2)], { axis: 3 });
    return g.node("Add", [g.node("Mul", [x, cos]), g.node("Mul", [turned, sin])]);
  };
  const embedded = (x, n) => g.node("RotaryEmbedding", [x, "position_ids", cosCache, sinCache],
    { num_heads: n }, undefined, "com.microsoft");

  function attention(layer, x) {
    const project = (name, n) =>
      g.node("MatMul", [x, g.floats(weights.layers[layer][name], [width, n * dim])]);
    const [q, k, v] = [project("q", heads), project("k", kvHeads), project("v", kvHeads)];
    const type = halfCache ? FLOAT16 : FLOAT;
    const past = ["key", "value"].map((name) =>
      g.input(`past_key_values.${layer}.${name}`, type, "batch_size", kvHeads, "past", dim));
    const present = ["key", "value"].map((name) => `present.${layer}.${name}`);
    for (const name of present) g.output(name, type, "batch_size", kvHeads, "all", dim);
    const fused = `f${layer}`;
    if (kind.startsWith("gqa")) {
      const given = kind === "gqa-packed" ? [g.node("Concat", [q, k, v], { axis: 2 }), "", ""]
        : kind === "gqa" ? [q, k, v] : [embedded(q, heads), embedded(k, kvHeads), v];
      const turned = byLength ? [cosCache, sinCache] : [];
      return g.node("GroupQueryAttention", [...given, ...past, last, total, ...turned],
        { num_heads: heads, kv_num_heads: kvHeads, do_rotary: byLength ? 1 : 0,
          local_window_size: local }, [fused, ...present],
        "com.microsoft");
    }
    if (kind === "mha") {
      return g.node("MultiHeadAttention",
        [embedded(q, heads), embedded(k, kvHeads), v, hasBias ? g.floats(Array(3 * width).fill(0)) : "", "", mask,
         ...past],
        { num_heads: heads }, [fused, ...present], "com.microsoft");
    }
    const query = rotated(split(q, heads));
    const cached = (name, rows) => {
      const i = name === "key" ? 0 : 1;
      const stored = halfCache ? g.node("Cast", [rows], { to: FLOAT16 }) : rows;
      const all = g.node("Concat", [past[i], stored], { axis: 2 }, [present[i]]);
      return halfCache ? g.node("Cast", [all], { to: FLOAT }) : all;
    };
    const keys = cached("key", rotated(split(k, kvHeads)));
    const values = cached("value", split(v, kvHeads));
    const known = kind === "unknown" ? g.node("Abs", [keys]) : keys;
    const root = g.floats([dim ** -0.25]); // half of the scale on each side
    const grouped = g.node("Reshape",
      [g.node("Mul", [query, root]), g.list(0, kvHeads, heads / kvHeads, -1, dim)]);
    const across = g.node("Transpose", [g.node("Unsqueeze", [known, g.list(2)])], { perm: [0, 1, 2, 4, 3] });
    let logits = g.node("MatMul", [grouped, g.node("Mul", [across, root])]);
    if (softcap) {
      const cap = g.floats([softcap]);
      logits = g.node("Mul", [g.node("Tanh", [g.node("Div", [logits, cap])]), cap]);
    }
    const shares = g.node("Softmax",
      [g.node("Add", [logits, g.node("Unsqueeze", [mask, g.list(1)])])], { axis: -1 });
    const mixed = g.node("MatMul", [shares, g.node("Unsqueeze", [values, g.list(2)])]);
    return merge(g.node("Reshape", [mixed, g.list(0, heads, -1, dim)]));
  }

  let x = g.node("Gather", [g.floats(weights.embedding, [vocabulary, width]), "input_ids"]);
  for (let layer = 0; layer < layers; ++layer) {
    const mixed = attention(layer, x);
    x = g.node("Add", [x, g.node("MatMul", [mixed, g.floats(weights.layers[layer].o, [width, width])])]);
  }
  g.node("MatMul", [x, g.floats(weights.head, [width, vocabulary])], {}, ["logits"]);
  g.output("logits", FLOAT, "batch_size", "new", vocabulary);
  return g.finish();
}
