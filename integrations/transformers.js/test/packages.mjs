// The packages, by the folders that run.sh names. transformers.js runs its models with
// onnxruntime-web here, as in browsers, not with onnxruntime-node.
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";
import { filesOf } from "./rig.mjs";

const { resolve } = createRequire(process.env.KVEVICT_MODULES);
const from = resolve("onnxruntime-web");
export const ort = await import(from);
ort.env.logLevel = "error";
ort.env.wasm.wasmPaths = `${pathToFileURL(dirname(from))}/`;
export const kvevict = await import(process.env.KVEVICT_TRANSFORMERS);
export const create = (bytes) => ort.InferenceSession.create(bytes, { logSeverityLevel: 3 });

globalThis[Symbol.for("onnxruntime")] = ort;
const node = join(dirname(resolve("@huggingface/transformers")), "transformers.node.mjs");
export const transformers = await import(node);
transformers.env.logLevel = transformers.LogLevel.NONE; // runs that are to fail print their inputs

// Loads a model of a graph as from a hub.
export async function loadModel(options, onnx, config) {
  const folder = await mkdtemp(join(tmpdir(), "kvevict-"));
  try {
    await mkdir(join(folder, "tiny/onnx"), { recursive: true });
    for (const [name, content] of Object.entries(filesOf(options, onnx, config))) {
      await writeFile(join(folder, "tiny", name), content);
    }
    Object.assign(transformers.env, { allowRemoteModels: false, localModelPath: `${folder}/`,
                                      useFSCache: false });
    return await transformers.AutoModelForCausalLM.from_pretrained("tiny", { dtype: "fp32", device: "auto" });
  } finally {
    await rm(folder, { recursive: true });
  }
}
