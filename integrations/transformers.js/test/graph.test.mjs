// What is read of graphs, and what is added to them.
import assert from "node:assert/strict";
import { test } from "node:test";
import { create, kvevict, ort } from "./packages.mjs";
import { defaults, isByLength, makeDecoder } from "./decoder.mjs";
import { Reader, graphs, tokens } from "./rig.mjs";
import { Reference } from "./reference.mjs";
import { write } from "../src/protobuf.js";
const { addQueryOutputs, inspectGraph, GraphError } = kvevict;

test("where positions come from, and how logits are scaled", () => {
  for (const graph of graphs) {
    const { positions, rope, layers } = inspectGraph(makeDecoder(graph));
    assert.equal(positions, isByLength(graph) ? "length" : "input");
    assert.equal(rope !== undefined, isByLength(graph));
    for (const { scale } of layers) assert.ok([0, 0.25].includes(Math.fround(scale)), scale);
  }
  const [layer] = inspectGraph(makeDecoder({ softcap: 5 })).layers;
  assert.deepEqual(layer, { layer: 0, op: "MatMul", scale: layer.scale, softcap: 5 });
  assert.ok(Math.abs(layer.scale - 0.25) < 1e-7, layer.scale);
});

test("frequencies are those of the table, in f32 and f16", () => {
  for (const isHalf of [false, true]) {
    const { rope } = inspectGraph(makeDecoder({ kind: "gqa", isHalf }));
    rope.invFreq.forEach((w, f) => {
      const exact = 10000 ** (-2 * f / defaults.dim);
      // A rounding of the last row read, 512, by its position.
      assert.ok(Math.abs(w - exact) < (isHalf ? 2 ** -11 : 2 ** -24) / 512 + exact * 2 ** -24, `${f}: ${w}`);
    });
    assert.equal(rope.interleaved, false);
  }
});

test("added outputs are the queries that the reference computes", async () => {
  for (const graph of graphs) {
    const { heads, dim } = { ...defaults, ...graph };
    const session = await create(addQueryOutputs(makeDecoder(graph), { window: 3 }));
    assert.deepEqual(session.outputNames.filter((name) => name.startsWith("query")), ["query.0", "query.1"]);
    const outputs = [];
    const { run } = session;
    session.run = async (feeds) => {
      outputs.push(await run.call(session, feeds));
      return outputs.at(-1);
    };
    const reader = new Reader(ort, session, graph);
    const reference = new Reference(graph, { kind: "snapkv", window: 3 });
    for (const n of [10, 2, 1]) {
      const ids = tokens(n, reader.seen);
      await reader.read(ids);
      reference.read(ids);
      for (const layer of [0, 1]) {
        const { dims, data } = outputs.at(-1)[`query.${layer}`];
        const rows = Math.min(n, 3);
        assert.deepEqual(dims, dims.length === 4 ? [1, heads, rows, dim] : [1, rows, heads * dim]);
        const at = (r, h, d) => data[dims.length === 4 ? (h * rows + r) * dim + d : (r * heads + h) * dim + d];
        reference.queriesOf(layer).slice(-rows).forEach((row, r) => row.forEach((query, h) =>
          query.forEach((x, d) => assert.ok(Math.abs(x - at(r, h, d)) < 1e-5, `${x} ${at(r, h, d)}`))));
      }
    }
  }
});

test("the rest of the file stays, and outputs are added once", () => {
  const onnx = makeDecoder();
  const added = addQueryOutputs(onnx);
  assert.equal(addQueryOutputs(added), added);
  assert.deepEqual(inspectGraph(added), inspectGraph(onnx));
  assert.ok(added.length - onnx.length < 1000, `${added.length - onnx.length} bytes`);
  assert.throws(() => addQueryOutputs(onnx, { window: -1 }), /window -1 is no count of rows/);
});

test("graphs that are not known are refused with the reason", () => {
  const refused = (options, sentence) => {
    for (const use of [inspectGraph, addQueryOutputs]) {
      assert.throws(() => use(makeDecoder(options)),
                    (error) => error instanceof GraphError && sentence.test(error.message));
    }
  };
  refused({ kind: "unknown" }, /past_key_values\.0\.key goes into Concat, and from there to no product/);
  refused({ kind: "gqa-positions", local: 64 }, /layer 0 attends to a window of 64 slots/);
  refused({ kind: "none" }, /neither an input position_ids nor GroupQueryAttention with do_rotary/);
  refused({ layers: 0 }, /no input past_key_values\.N\.key/);
  assert.throws(() => addQueryOutputs(makeDecoder({ kind: "mha", kvHeads: 4, hasBias: true })),
                /MultiHeadAttention adds a bias to its queries/);
  // As in a merged decoder, whose branches alone read the cache.
  const branches = write(7, [write(11, [write(1, "past_key_values.0.key")])]);
  assert.throws(() => inspectGraph(branches), /no operation of the graph reads past_key_values\.0\.key/);
  assert.throws(() => inspectGraph(new Uint8Array(0)), /no ONNX model/);
  assert.throws(() => inspectGraph(makeDecoder().subarray(0, 1000)), /no protobuf/);
});
