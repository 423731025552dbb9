// The package as users get it: packed, installed, its program, its declarations, and the README's
// example as it is printed, with a tiny model in the place of a trained one.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { kvevict, loadModel, transformers } from "./packages.mjs";
import { makeDecoder } from "./decoder.mjs";
import { tokens } from "./rig.mjs";

const { KVEVICT_PACKAGE, KVEVICT_WEB, KVEVICT_MODULES } = process.env;
const run = (file, args, options) => execFileSync(file, args, { encoding: "utf8", stdio: "pipe", ...options });

function inFolder(use) {
  const folder = mkdtempSync(join(tmpdir(), "kvevict-"));
  try {
    return use(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

test("the packed package loads by its name, and its program adds queries", () => inFolder((folder) => {
  const npm = ["pack", "--silent", "--cache", join(folder, "cache"), "--pack-destination", folder];
  const archive = run("npm", npm, { cwd: KVEVICT_PACKAGE }).trim();
  const scope = join(folder, "node_modules/@kvevict");
  mkdirSync(join(scope, "transformers"), { recursive: true });
  symlinkSync(KVEVICT_WEB, join(scope, "web"));
  run("tar", ["-C", join(scope, "transformers"), "--strip-components=1", "-xf", join(folder, archive)]);
  writeFileSync(join(folder, "program.mjs"), `import * as all from "@kvevict/transformers";
    console.log(Object.keys(all).sort().join(" "));`);
  assert.equal(run(process.execPath, [join(folder, "program.mjs")]).trim(),
               "Eviction GraphError addQueryOutputs evictSession inspectGraph withEviction");
  const onnx = makeDecoder();
  const [from, to] = [join(folder, "in.onnx"), join(folder, "out.onnx")];
  writeFileSync(from, onnx);
  const program = join(scope, "transformers/bin/kvevict-onnx.mjs");
  const told = run(process.execPath, [program, from, to, "8"]);
  assert.deepEqual(JSON.parse(told), kvevict.inspectGraph(onnx));
  assert.deepEqual(new Uint8Array(readFileSync(to)), kvevict.addQueryOutputs(onnx, { window: 8 }));
  writeFileSync(from, makeDecoder({ kind: "unknown" }));
  assert.throws(() => run(process.execPath, [program, from]), (error) =>
    error.status === 1 && /^kvevict-onnx: past_key_values\.0\.key goes into Concat/.test(error.stderr));
}));

test("the declarations name what the package exports", () => {
  const text = readFileSync(join(KVEVICT_PACKAGE, "dist/index.d.ts"), "utf8");
  const declared = [...text.matchAll(/^export declare (?:function|class) (\w+)/gm)].map(([, name]) => name);
  assert.deepEqual(declared.sort(), Object.keys(kvevict).sort());
});

test("the peer is the version that the tests use", () => {
  const { peerDependencies } = JSON.parse(readFileSync(join(KVEVICT_PACKAGE, "package.json"), "utf8"));
  const { dependencies } = createRequire(import.meta.url)("./package.json");
  const [major, minor] = dependencies["@huggingface/transformers"].split(".");
  assert.equal(peerDependencies["@huggingface/transformers"], `~${major}.${minor}.0`);
  assert.ok(KVEVICT_MODULES.endsWith("package.json"));
});

test("the README's example evicts, turn by turn", async () => {
  const page = readFileSync(join(KVEVICT_PACKAGE, "README.md"), "utf8");
  const [, code] = /```js\n((?:import [^\n]*\n)+[^]*?)```/.exec(page);
  const graph = { maxPositions: 4096 };
  const onnx = makeDecoder(graph);
  const printed = [];
  let history = [];
  const standIns = {
    AutoModelForCausalLM: { from_pretrained: () => loadModel(graph, onnx) },
    AutoTokenizer: { from_pretrained: () => ({
      apply_chat_template(messages) {
        history = messages.flatMap(({ role, content }) => (role === "user" ? tokens(Number(content)) : content));
        const tensor = (values) => new transformers.Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
        return { input_ids: tensor(history), attention_mask: tensor(history.map(() => 1)) };
      },
      decode: (ids) => Array.from(ids.data, Number),
    }) },
    withEviction: kvevict.withEviction,
    fetch: async () => new Response(onnx),
    console: { log: (line) => printed.push(line) },
  };
  const AsyncFunction = (async () => {}).constructor;
  const body = code.replace(/^import [^\n]*\n/gm, "").replace("max_new_tokens: 256", "max_new_tokens: 4");
  const ask = await new AsyncFunction(...Object.keys(standIns), `${body}; return ask;`)(...Object.values(standIns));
  for (const question of ["1200", "90"]) await ask(question);
  const bytes = (n) => n * 2 * 2 * 2 * 16 * 4;
  assert.deepEqual(printed, [`1203 tokens seen, 1027 kept in ${bytes(1027)} bytes`,
                             `1297 tokens seen, 1027 kept in ${bytes(1027)} bytes`]);
});
