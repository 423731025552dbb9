// Adds outputs "query.N" to a graph: the queries that each layer's attention multiplies with its
// keys.
import { readGraph, inspect, GraphError } from "./graph.js";
import { join, write } from "./protobuf.js";

const MICROSOFT = "com.microsoft";
const FLOAT = 1;
const INT64 = 7;
const MOST = 2n ** 63n - 1n;

// What is added: nodes and constants, as fields of the graph.
class Additions {
  fields = [];
  #names = 0;

  list(...values) {
    const name = `kvevict_${this.#names++}`;
    const raw = new Uint8Array(BigInt64Array.from(values, BigInt).buffer);
    this.fields.push(
      write(5, [write(1, values.length), write(2, INT64), write(8, name), write(9, raw)]));
    return name;
  }

  node(op, inputs, attributes = {}, { domain = "", output = `kvevict_${this.#names++}` } = {}) {
    this.fields.push(write(1, [
      ...inputs.map((name) => write(1, name)),
      write(2, output),
      write(4, op),
      ...Object.entries(attributes).map(([name, value]) =>
        write(5, [write(1, name), write(3, value), write(20, 2)])),
      ...(domain === "" ? [] : [write(7, domain)]),
    ]));
    return output;
  }

  // The length of an axis, as a list of one number.
  length(tensor, axis) {
    return this.node("Gather", [this.node("Shape", [tensor]), this.list(axis)], { axis: 0 });
  }

  slice(tensor, axis, first, end) {
    return this.node("Slice", [tensor, this.list(first), this.list(end), this.list(axis)]);
  }
}

// Rotates queries as the operation itself will: by the slots behind the past.
function rotate(add, layer, last) {
  const { node, heads } = layer;
  const seen = node.inputs[9] ? undefined
    : add.node("Add", [add.length(node.inputs[3], 2), add.node("Sub",
      [add.length(layer.tensor, 1), add.length(last, 1)])]);
  // If positions are given, the last rows have the last of them.
  const positions = seen ?? add.node("Slice",
    [node.inputs[9], add.node("Neg", [add.length(last, 1)]), add.list(MOST), add.list(1)]);
  const { rotary_interleaved: interleaved = 0, rotary_embedding_dim: dim = 0 } = node.attributes;
  return add.node("RotaryEmbedding", [last, positions, node.inputs[7], node.inputs[8]],
    { num_heads: heads, interleaved, ...(dim > 0 && { rotary_embedding_dim: dim }) },
    { domain: MICROSOFT });
}

/** See index.d.ts. */
export function addQueryOutputs(bytes, { window = 32 } = {}) {
  if (!Number.isInteger(window) || window < 0) {
    throw new RangeError(`window ${window} is no count of rows; 0 means all`);
  }
  const graph = readGraph(bytes);
  const { layers } = inspect(graph);
  if (graph.opset < 10) throw new GraphError(`opset ${graph.opset} < 10: Slice takes no inputs`);
  if (graph.outputs.has(`query.${layers[0].layer}`)) return bytes;
  const add = new Additions();
  for (const layer of layers) {
    let { tensor } = layer;
    if (layer.hasBias) {
      throw new GraphError(`layer ${layer.layer}: ${layer.op} adds a bias to its queries`);
    }
    if (layer.isPacked) {
      if (layer.kHeadDim === undefined) {
        throw new GraphError(`layer ${layer.layer}: queries, keys and values come in one tensor, ` +
          `and past_key_values.${layer.layer}.key does not tell the size of a head`);
      }
      tensor = add.slice(tensor, 2, 0, layer.heads * layer.kHeadDim);
    }
    if (window > 0) tensor = add.slice(tensor, layer.isFused ? 1 : 2, -window, MOST);
    if (layer.rotates) tensor = rotate(add, layer, tensor);
    const output = `query.${layer.layer}`;
    add.node("Cast", [tensor], { to: FLOAT }, { output });
    add.fields.push(write(12, [write(1, output), write(2, [write(1, [write(1, FLOAT)])])]));
  }
  const { field } = graph;
  const before = bytes.subarray(0, field.start);
  const inner = bytes.subarray(field.begin, field.end);
  return join([before, write(7, [inner, ...add.fields]), bytes.subarray(field.end)]);
}
