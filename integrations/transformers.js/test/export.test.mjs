// Graphs as PyTorch's exporter writes them.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { create, kvevict, ort } from "./packages.mjs";
import { Reader, best, tokens } from "./rig.mjs";

const scales = { divided: [0.25, 0], scaled_both: [0, 0], scaled_before: [0.25, 0], capped: [0.25, 30] };

test("queries, scales and evictions of exported graphs", async () => {
  const folder = mkdtempSync(join(tmpdir(), "kvevict-"));
  const program = fileURLToPath(new URL("export.py", import.meta.url));
  const { status, stderr } = spawnSync(process.env.KVEVICT_PYTHON, [program, folder], { encoding: "utf8" });
  assert.equal(status, 0, stderr);
  for (const [name, [scale, softcap]] of Object.entries(scales)) {
    const onnx = new Uint8Array(readFileSync(join(folder, `${name}.onnx`)));
    const expected = JSON.parse(readFileSync(join(folder, `${name}.json`)));
    for (const layer of kvevict.inspectGraph(onnx).layers) {
      assert.deepEqual([Math.fround(layer.scale), layer.softcap], [scale, softcap], name);
    }
    const session = await create(kvevict.addQueryOutputs(onnx, { window: 8 }));
    const { run } = session;
    let out;
    session.run = async (feeds) => (out = await run.call(session, feeds));
    const logits = await new Reader(ort, session, {}).read(tokens(20));
    const near = (x, y) => assert.ok(Math.abs(x - y) < 1e-5, `${name}: ${x} ${y}`);
    logits.forEach((x, i) => near(x, expected.logits[i]));
    expected.queries.forEach((heads, layer) => {
      const { dims, data } = out[`query.${layer}`];
      assert.deepEqual(dims, [1, 4, 8, 16]);
      heads.map((rows) => rows.slice(-8)).flat(2).forEach((x, i) => near(x, data[i]));
    });
    session.run = run;

    await kvevict.evictSession(session, { kind: "streaming-llm", budget: 40 });
    const [ours, full] = [new Reader(ort, session, {}), new Reader(ort, await create(onnx), {})];
    const hidden = new Set();
    for (let next = tokens(100), i = 0; i < 12; ++i) {
      const [x, y] = [await ours.read(next), await full.read(next, { hidden })];
      x.forEach((logit, j) => near(logit, y[j]));
      next = [best(y)];
      for (let p = 4; p < full.seen - 36; ++p) hidden.add(p);
    }
  }
  rmSync(folder, { recursive: true });
});
