// What browser.test.mjs opens: sessions and models that evict in a browser, on the wasm and the
// webgpu provider. Posts what came out.
import * as ort from "onnxruntime-web/webgpu";
import * as transformers from "@huggingface/transformers";
import { addQueryOutputs, evictSession, withEviction } from "@kvevict/transformers";
import { makeDecoder } from "./decoder.mjs";
import { chat, compare, filesOf, graphs, policies, textOf } from "./rig.mjs";

const messages = [];
for (const level of ["warn", "error"]) {
  console[level] = (...words) => messages.push(words.join(" "));
}
addEventListener("error", (event) => messages.push(event.message));
addEventListener("unhandledrejection", (event) => messages.push(String(event.reason)));
ort.env.logLevel = "error";
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = "/modules/onnxruntime-web/dist/"; // transformers.js would ask a server

const onGpu = (session) => Object.fromEntries(session.map((name) => [name, "gpu-buffer"]));
const layers = [0, 1];
const cacheNames = layers.flatMap((l) => [`present.${l}.key`, `present.${l}.value`]);
const queryNames = layers.map((l) => `query.${l}`);

// Says how far it is, for whom it takes long.
const began = performance.now();
const tell = (what) => fetch(`/done?${Math.round(performance.now() - began)} ms: ${what}`);

// On the software driver the fused attention of the webgpu provider gives wrong logits for 32 new
// tokens and more, also without eviction.
const mostOnSwiftShader = 30;

// A session of a graph, evicted by one policy after the other. `where` the queries come out: on
// the GPU, or as transformers.js asks for them, on the CPU.
async function session(provider, where, graph, policies) {
  const chunk = provider === "webgpu" && graph.kind !== "decomposed" ? mostOnSwiftShader : 128;
  const onnx = makeDecoder(graph);
  const made = await ort.InferenceSession.create(addQueryOutputs(onnx, { window: 8 }), {
    executionProviders: [provider], logSeverityLevel: 3,
    ...(provider === "webgpu" && {
      preferredOutputLocation: onGpu(where === "gpu" ? [...cacheNames, ...queryNames] : cacheNames),
    }),
  });
  const results = [];
  for (const policy of policies) {
    const eviction = await evictSession(made, { policy: textOf(policy), onnx, env: ort.env });
    const result = await compare(ort, made, eviction, graph, policy, { chunk });
    const what = `${provider}, queries on the ${where}: ${JSON.stringify(graph)} ${textOf(policy)}`;
    results.push({ what, by: eviction.last.by, ...result });
    eviction.remove();
    tell(what);
  }
  await made.release();
  return results;
}

async function model(device, graph, policy, { inPlace, turns } = {}) {
  const onnx = makeDecoder(graph);
  const files = filesOf(graph, inPlace ? addQueryOutputs(onnx, { window: 8 }) : onnx);
  const { env } = transformers;
  Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/models/",
                       useBrowserCache: false, useWasmCache: false });
  env.fetch = async (url) => new Response(files[String(url).split("/models/tiny/")[1]] ?? null,
    { status: String(url).split("/models/tiny/")[1] in files ? 200 : 404 });
  const tiny = await transformers.AutoModelForCausalLM.from_pretrained("tiny", { device, dtype: "fp32" });
  const eviction = await withEviction(tiny, { policy: textOf(policy), onnx });
  const { cache, ...result } = await chat(transformers, tiny, eviction, graph, policy, turns);
  const { location } = cache["past_key_values.0.key"];
  await cache.dispose();
  const { by } = eviction.last;
  await tiny.dispose();
  const what = `${device}: ${JSON.stringify(graph)} ${textOf(policy)}`;
  tell(what);
  return { what, by, location, ...result };
}

async function run() {
  const snapkv = policies.find(({ kind }) => kind === "snapkv");
  const sessions = await session("wasm", "cpu", graphs[0], [snapkv]);
  const [, uneven, , packed, ...others] = graphs; // each kind once
  // The kernels have no such parameter: the cache is copied to the core and back.
  const unknown = { kind: "keydiff", budget: 40, margin: 5, anchor: "zeros" };
  for (const [graph, some] of [[uneven, [...policies, unknown]], [packed, policies.slice(1, 4)],
                               ...others.map((graph) => [graph, [snapkv]])]) {
    sessions.push(...await session("webgpu", "gpu", graph, some));
  }
  for (const graph of [uneven, packed]) sessions.push(...await session("webgpu", "cpu", graph, [snapkv]));
  const device = await ort.env.webgpu.device;
  device.addEventListener("uncapturederror", (event) => messages.push(event.error.message));
  const models = [
    await model("webgpu", graphs[0], snapkv),
    await model("webgpu", graphs[2], snapkv, { inPlace: true, turns: [[28, 24], [20, 1], [15, 8]] }),
    await model("wasm", graphs[0], snapkv),
  ];
  return { sessions, models, console: messages };
}

const result = await run().catch((error) => ({ error: String(error.stack ?? error), console: messages }));
await fetch("/result", { method: "POST", body: JSON.stringify(result) });
