// Reads the text and evaluates policies, away from the page's thread.
import * as web from "./kvevict/dist/kvevict.js";
import { createEvictor } from "./kvevict/webgpu/index.js";
import { Experiment } from "./experiment.js";
import { GpuCache, requestGpu } from "./gpu.js";

let experiment;
// One thing after the other: the cache is one.
let last = Promise.resolve();

async function start({ nTokens, seed }) {
  const kv = await web.load(web.fullModule);
  experiment = new Experiment(web, kv, nTokens, seed);
  const begin = performance.now();
  for (let done = 0; done < nTokens;) {
    done = experiment.read(done);
    postMessage({ type: "progress", done, nTokens });
  }
  const seconds = (performance.now() - begin) / 1000;
  const { device, name, reason } = await requestGpu(navigator.gpu);
  if (device !== undefined) {
    experiment.useGpu(new GpuCache(device, createEvictor));
    device.lost.then(({ message }) => {
      experiment.useGpu(null);
      postMessage({ type: "lost", reason: `the GPU was lost: ${message}` });
    });
  }
  postMessage({ type: "ready", seconds, version: kv.version, gpu: name, reason,
                needles: experiment.workload.needles, fullBytes: experiment.fullBytes });
}

async function evaluate({ id, text, budget, wantsGpu }) {
  try {
    postMessage({ type: "result", id, ...await experiment.evaluate(text, budget, wantsGpu) });
  } catch (error) {
    if (!wantsGpu || !experiment.runsOnGpu(text)) throw error;
    experiment.useGpu(null);
    postMessage({ type: "lost", id, reason: `the GPU failed: ${error.message}` });
  }
}

onmessage = ({ data }) => {
  const { type, id } = data;
  last = last.then(() => (type === "start" ? start(data) : evaluate(data))).catch((error) => {
    postMessage({ type: "error", id, message: error.message });
  });
};
