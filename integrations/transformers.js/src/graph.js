// What an ONNX graph says of its attention: where each layer's queries come from, how logits are
// scaled, and how tokens get their positions.
import { content, fields, float, inside, integer, integers, string } from "./protobuf.js";

const FLOAT = 1;
const FLOAT16 = 10;
// Operations with a cache of their own: which inputs are the query, the past keys and a bias.
const FUSED = {
  GroupQueryAttention: { query: 0, keys: 1, past: 3 },
  MultiHeadAttention: { query: 0, keys: 1, past: 6, bias: 3 },
  Attention: { query: 0, keys: 1, past: 4 },
};
const SAME = new Set(["Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Expand"]);
const pastKey = /^past_key_values\.(\d+)\.key$/;

export class GraphError extends Error {
  name = "GraphError";
}
const refuse = (sentence) => {
  throw new GraphError(sentence);
};

function readNode(field) {
  const node = { op: "", domain: "", inputs: [], outputs: [], attributes: {} };
  for (const one of inside(field)) {
    if (one.number === 1) node.inputs.push(string(one));
    else if (one.number === 2) node.outputs.push(string(one));
    else if (one.number === 4) node.op = string(one);
    else if (one.number === 5) readAttribute(one, node.attributes);
    else if (one.number === 7) node.domain = string(one);
  }
  return node;
}

function readAttribute(field, attributes) {
  let name;
  let value;
  for (const one of inside(field)) {
    if (one.number === 1) name = string(one);
    else if (one.number === 2) value = float(one);
    else if (one.number === 3) value = integer(one);
    else if (one.number === 5) value = readTensor(one);
    else if (one.number === 8) value = [...(value ?? []), ...integers(one)];
  }
  attributes[name] = value;
}

function readTensor(field) {
  const tensor = { name: "", dims: [], type: 0, isExternal: false };
  for (const one of inside(field)) {
    if (one.number === 1) tensor.dims.push(...integers(one));
    else if (one.number === 2) tensor.type = integer(one);
    else if (one.number === 4) tensor.raw = content(one); // packed floats
    else if (one.number === 8) tensor.name = string(one);
    else if (one.number === 9) tensor.raw = content(one);
    else if (one.number === 13) tensor.isExternal = true;
  }
  return tensor;
}

// Numbers of a tensor from an element on; undefined if they are not in the file.
function numbers(tensor, first = 0, count = 1) {
  if (tensor?.raw === undefined || tensor.isExternal) return undefined;
  const size = { [FLOAT]: 4, [FLOAT16]: 2 }[tensor.type];
  if (size === undefined || (first + count) * size > tensor.raw.length) return undefined;
  const view = new DataView(tensor.raw.buffer, tensor.raw.byteOffset);
  return Array.from({ length: count }, (_, i) => {
    const at = (first + i) * size;
    return size === 4 ? view.getFloat32(at, true) : half(view.getUint16(at, true));
  });
}

function half(bits) {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const size = exponent === 0 ? fraction * 2 ** -24
    : exponent === 31 ? (fraction ? NaN : Infinity) : (1 + fraction / 1024) * 2 ** (exponent - 15);
  return bits & 0x8000 ? -size : size;
}

function readInput(field) {
  const input = { name: "", dims: [] };
  for (const one of inside(field)) {
    if (one.number === 1) input.name = string(one);
    if (one.number !== 2) continue;
    for (const type of inside(one)) {
      for (const part of type.number === 1 ? inside(type) : []) {
        if (part.number !== 2) continue;
        for (const dim of inside(part)) {
          const [size] = [...inside(dim)].filter((of) => of.number === 1);
          input.dims.push(size && integer(size)); // a name is undefined
        }
      }
    }
  }
  return input;
}

export function readGraph(bytes) {
  const graph = { bytes, opset: 0, inputs: new Map(), outputs: new Set(), tensors: new Map(),
                  producers: new Map(), consumers: new Map() };
  for (const field of fields(bytes)) {
    if (field.number === 8) {
      const parts = new Map([...inside(field)].map((one) => [one.number, one]));
      const domain = parts.has(1) ? string(parts.get(1)) : "";
      if (domain === "" && parts.has(2)) graph.opset = integer(parts.get(2));
    }
    if (field.number === 7) graph.field = field;
  }
  if (graph.field === undefined) refuse("these bytes are no ONNX model: they have no graph");
  for (const one of inside(graph.field)) {
    if (one.number === 1) {
      const node = readNode(one);
      for (const name of node.outputs) graph.producers.set(name, node);
      for (const name of node.inputs) {
        if (!graph.consumers.has(name)) graph.consumers.set(name, []);
        graph.consumers.get(name).push(node);
      }
    } else if (one.number === 5) {
      const tensor = readTensor(one);
      graph.tensors.set(tensor.name, tensor);
    } else if (one.number === 11) {
      const input = readInput(one);
      graph.inputs.set(input.name, input);
    } else if (one.number === 12) {
      graph.outputs.add(readInput(one).name);
    }
  }
  return graph;
}

const tensorOf = (graph, name) =>
  graph.tensors.get(name) ?? graph.producers.get(name)?.attributes.value;

// A factor that a Mul or Div applies to its other input: a number, NaN if the graph computes it,
// undefined if it is no scalar.
function factor(graph, node, name) {
  if (node.op !== "Mul" && node.op !== "Div") return undefined;
  const other = node.inputs[0] === name ? node.inputs[1] : node.inputs[0];
  const tensor = tensorOf(graph, other);
  if (tensor !== undefined) {
    if (tensor.dims.reduce((product, dim) => product * dim, 1) !== 1) return undefined;
    const [value] = numbers(tensor) ?? [NaN];
    return node.op === "Div" ? 1 / value : value;
  }
  const producer = graph.producers.get(other)?.op;
  return ["Sqrt", "Reciprocal", "Pow", "Div"].includes(producer) ? NaN : undefined;
}

// From a layer's concatenated keys to the product with the queries.
function findProduct(graph, keys) {
  const found = [];
  const seen = new Set();
  const walk = (name, scale) => {
    if (seen.has(name)) return;
    seen.add(name);
    for (const node of graph.consumers.get(name) ?? []) {
      const by = factor(graph, node, name);
      if (node.op === "MatMul") found.push({ node, scale, side: node.inputs.indexOf(name) });
      else if (by !== undefined) walk(node.outputs[0], scale * by);
      else if ((SAME.has(node.op) || node.op === "Transpose") && node.inputs[0] === name) {
        walk(node.outputs[0], scale);
      }
    }
  };
  walk(keys, 1);
  return found.length === 1 && found[0].side === 1 ? found[0] : undefined;
}

// Back from a product's operand to the tensor that rotation, or the split into heads, made.
function findQuery(graph, name) {
  let scale = 1;
  for (;;) {
    const node = graph.producers.get(name);
    if (node === undefined) return { tensor: name, scale };
    const next = node.inputs.find((input) => factor(graph, node, input) !== undefined);
    if (next !== undefined) {
      scale *= factor(graph, node, next);
      name = next;
    } else if (SAME.has(node.op)) {
      [name] = node.inputs;
    } else {
      return { tensor: name, scale };
    }
  }
}

// Scale and soft cap between the product and the softmax.
function findLogits(graph, name) {
  let scale = 1;
  let softcap = 0;
  for (;;) {
    const [node, ...others] = graph.consumers.get(name) ?? [];
    if (node === undefined || others.length > 0) return { scale, softcap };
    const by = factor(graph, node, name);
    if (node.op === "Tanh") softcap = 1;
    else if (by !== undefined && softcap > 0) return { scale: scale * by, softcap: by };
    else if (by !== undefined) scale *= by;
    else if (!SAME.has(node.op)) return { scale, softcap };
    [name] = node.outputs;
  }
}

// Queries as [batch, heads, tokens, dim] or, from a fused operation, [batch, tokens, heads * dim].
function readLayer(graph, layer) {
  const name = `past_key_values.${layer}.key`;
  const [node, ...others] = graph.consumers.get(name) ?? [];
  if (node === undefined) {
    refuse(`no operation of the graph reads ${name}: it has branches, as a merged decoder has`);
  }
  const { op, attributes } = node;
  const [, nKvHeads, , kHeadDim] = graph.inputs.get(name).dims;
  const fused = FUSED[op];
  if (fused !== undefined && node.inputs[fused.past] === name) {
    if (attributes.local_window_size > 0) {
      const { local_window_size: window } = attributes;
      refuse(`layer ${layer} attends to a window of ${window} slots, which hold other tokens after an eviction`);
    }
    const heads = attributes.num_heads ?? attributes.q_num_heads;
    return {
      layer, op, node, tensor: node.inputs[fused.query], heads, nKvHeads, kHeadDim,
      isPacked: !node.inputs[fused.keys], isFused: heads !== undefined,
      hasBias: Boolean(fused.bias && node.inputs[fused.bias]),
      rotates: attributes.do_rotary === 1,
      scale: attributes.scale || 0, softcap: attributes.softcap || 0,
    };
  }
  const product = op === "Concat" && others.length === 0
    ? findProduct(graph, node.outputs[0]) : undefined;
  if (product === undefined) {
    const into = others.length > 0 ? "several operations" : op;
    refuse(`${name} goes into ${into}, and from there to no product with queries that is known`);
  }
  const query = findQuery(graph, product.node.inputs[0]);
  const logits = findLogits(graph, product.node.outputs[0]);
  const scale = product.scale * query.scale * logits.scale;
  return { layer, op: "MatMul", node, tensor: query.tensor, nKvHeads, kHeadDim, isFused: false,
           scale: Number.isFinite(scale) && scale > 0 ? scale : 0,
           softcap: Number.isFinite(logits.softcap) ? logits.softcap : 0 };
}

// Frequencies of a table of cosines and sines, [positions, pairs]: from row 1, and from ever
// further rows more digits.
function readRope(graph, node) {
  const [cos, sin] = [7, 8].map((i) => tensorOf(graph, node.inputs[i]));
  const [nRows, nPairs] = cos?.dims ?? [0, 0];
  const invFreq = new Float32Array(nPairs ?? 0);
  for (let f = 0; f < nPairs; ++f) {
    let w = 0;
    for (let p = 1; p < Math.min(nRows, 2 ** 15); p *= 2) {
      const c = numbers(cos, p * nPairs + f);
      const s = numbers(sin, p * nPairs + f);
      if (c === undefined || s === undefined) return undefined;
      const angle = Math.atan2(s[0], c[0]);
      w = (angle + 2 * Math.PI * Math.round((p * w - angle) / (2 * Math.PI))) / p;
    }
    invFreq[f] = w;
  }
  if (!(nRows > 1)) return undefined;
  return { invFreq: Array.from(invFreq), interleaved: node.attributes.rotary_interleaved === 1 };
}

// Reads what eviction has to know; throws GraphError with the reason if it cannot.
export function inspect(graph) {
  const numbersOf = [...graph.inputs.keys()].map((name) => pastKey.exec(name)?.[1])
    .filter((layer) => layer !== undefined);
  if (numbersOf.length === 0) {
    refuse("the graph has no input past_key_values.N.key: it is no decoder with a cache that is known");
  }
  const layers = numbersOf.map(Number).sort((a, b) => a - b)
    .map((layer) => readLayer(graph, layer));
  const turning = layers.filter((layer) => layer.rotates);
  let positions = graph.inputs.has("position_ids") ? "input" : undefined;
  let rope;
  if (turning.length > 0) {
    const given = turning.map(({ node }) => node.inputs[9] || "");
    if (given.every((name) => name === "position_ids")) positions = "input";
    else if (turning.length === layers.length && given.every((name) => name === "")) {
      positions = "length";
      rope = readRope(graph, turning[0].node);
    } else positions = undefined;
  }
  if (positions === undefined) {
    refuse("the graph has neither an input position_ids nor GroupQueryAttention with do_rotary in every layer: how it numbers tokens is not known");
  }
  return { positions, rope, layers };
}

// inspect() for users: an object that JSON can carry.
export function inspectGraph(bytes) {
  const { positions, rope, layers } = inspect(readGraph(bytes));
  return { positions, ...(rope && { rope }),
           layers: layers.map(({ layer, op, scale, softcap }) => ({ layer, op, scale, softcap })) };
}
