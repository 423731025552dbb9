// Evictions of the cache in GPU buffers.
import { HEAD_DIM, KV_HEADS, LAYERS, Q_HEADS } from "./recall/weights.js";

const USAGE = 128 | 4 | 8; // GPUBufferUsage.STORAGE, COPY_SRC, COPY_DST
const ROW = KV_HEADS * HEAD_DIM; // elements of a slot

// Policies of the evictor that the page offers; the others run by the core. `reads` is what
// encode() takes beside the cache.
const KINDS = {
  "streaming-llm": {},
  snapkv: { reads: "queries" },
  pyramidkv: { reads: "queries" },
  tova: { reads: "queries" },
  h2o: { reads: "sums" },
  knorm: {},
  keydiff: {},
  lagkv: {},
};

// A device, or the reason why there is none.
export async function requestGpu(gpu) {
  if (gpu === undefined) return { reason: "this browser has no WebGPU" };
  try {
    const adapter = await gpu.requestAdapter();
    if (adapter === null) return { reason: "WebGPU finds no GPU here" };
    const wanted = ["subgroups"].filter((name) => adapter.features.has(name));
    const device = await adapter.requestDevice({ requiredFeatures: wanted });
    const { vendor, architecture, description, isFallbackAdapter } = adapter.info ?? {};
    const name = description || [vendor, architecture].filter(Boolean).join(" ") ||
      "a GPU without a name";
    const isSoftware = isFallbackAdapter || /swiftshader|llvmpipe/i.test(name);
    return { device, name: isSoftware ? `${name}, a software driver on the CPU` : name };
  } catch (error) {
    return { reason: `WebGPU gives no device: ${error.message}` };
  }
}

export class GpuCache {
  #device;
  #createEvictor;
  #full; // of each layer {k, v}
  #work;
  #queries;
  #sums;
  #nTokens;
  #errors = [];

  constructor(device, createEvictor) {
    this.#device = device;
    this.#createEvictor = createEvictor;
    device.addEventListener("uncapturederror", ({ error }) => this.#errors.push(error.message));
  }

  has(text) {
    return text in KINDS;
  }

  // Takes the rows of a filled cache, the last queries and the attention sums.
  upload(cache, queries, sums) {
    [this.#nTokens] = cache.lengths;
    const put = (array, size = array.byteLength) => {
      const buffer = this.#device.createBuffer({ size, usage: USAGE });
      this.#device.queue.writeBuffer(buffer, 0, array);
      return buffer;
    };
    const rows = (memory) => memory.array(Float32Array, 0, this.#nTokens * ROW);
    this.#full = cache.layers.map(({ k, v }) => ({ k: put(rows(k)), v: put(rows(v)) }));
    this.#work = this.#full.map(({ k, v }) => ({
      k: this.#device.createBuffer({ size: k.size, usage: USAGE }),
      v: this.#device.createBuffer({ size: v.size, usage: USAGE }),
    }));
    this.#queries = queries.map((array) => put(array));
    this.#sums = sums.map((array) => put(array));
  }

  // Evicts a copy of the cache, and brings the rows that stay to `destination`.
  async evict(text, budgets, destination) {
    const evictor = this.#createEvictor(this.#device, {
      shape: { nQHeads: Q_HEADS, nKvHeads: KV_HEADS, kHeadDim: HEAD_DIM,
               maxTokens: this.#nTokens },
      policy: { kind: text, budget: Math.max(...budgets) },
    });
    const keeps = budgets.map((budget) => this.#device.createBuffer({
      size: 4 * budget * evictor.nLists, usage: USAGE }));
    try {
      const options = (layer) => this.#options(text, layer, budgets[layer], keeps[layer]);
      for (let layer = 0; layer < LAYERS; ++layer) await evictor.prepare(options(layer));
      await this.#submit((encoder) => this.#full.forEach(({ k, v }, layer) => {
        encoder.copyBufferToBuffer(k, 0, this.#work[layer].k, 0, k.size);
        encoder.copyBufferToBuffer(v, 0, this.#work[layer].v, 0, v.size);
      }));
      const start = performance.now();
      const evictions = [];
      await this.#submit((encoder) => {
        for (let layer = 0; layer < LAYERS; ++layer) {
          evictions.push(evictor.encode(encoder, options(layer)));
        }
      });
      const milliseconds = performance.now() - start;
      const kept = [];
      for (const [layer, eviction] of evictions.entries()) {
        kept.push(await this.#fetch(layer, eviction, keeps[layer], destination));
      }
      if (this.#errors.length > 0) throw new Error(this.#errors.splice(0).join("; "));
      return { kept, milliseconds };
    } finally {
      evictor.destroy();
      for (const buffer of keeps) buffer.destroy();
    }
  }

  #options(text, layer, budget, keep) {
    const strides = { tokenStrideBytes: 4 * ROW, headStrideBytes: 4 * HEAD_DIM };
    const { k, v } = this.#work[layer];
    const { reads } = KINDS[text];
    const options = {
      view: { k: { buffer: k, ...strides }, v: { buffer: v, ...strides } },
      nTokens: this.#nTokens, budget, keep: { buffer: keep },
    };
    if (reads === "queries") {
      const row = 4 * Q_HEADS * HEAD_DIM;
      const window = text === "tova" ? 1 : 32;
      options.queries = { buffer: this.#queries[layer], tokenStrideBytes: row,
                          headStrideBytes: 4 * HEAD_DIM };
      options.firstQuery = this.#queries[layer].size / row - window;
    } else if (reads === "sums") {
      options.scores = { buffer: this.#sums[layer] };
    }
    return options;
  }

  async #submit(encode) {
    const encoder = this.#device.createCommandEncoder();
    encode(encoder);
    this.#device.queue.submit([encoder.finish()]);
    await this.#device.queue.onSubmittedWorkDone();
  }

  // The slots that stayed, of each head. First evictions: slots are positions.
  async #fetch(layer, eviction, keep, destination) {
    const { nTokens, evicted } = eviction;
    const rows = await Promise.all(["k", "v"].map((plane) =>
      this.#read(this.#work[layer][plane], 4 * nTokens * ROW)));
    ["k", "v"].forEach((plane, i) => destination.layers[layer][plane].array(Float32Array)
      .set(new Float32Array(rows[i])));
    destination.lengths[layer] = nTokens;
    if (!evicted) {
      const all = Int32Array.from({ length: nTokens }, (_, i) => i);
      return new Array(KV_HEADS).fill(all);
    }
    const lists = new Int32Array(await this.#read(keep, keep.size));
    const { nLists, stride } = eviction.keep;
    return Array.from({ length: KV_HEADS }, (_, head) => {
      const first = nLists === 1 ? 0 : head * stride;
      return lists.slice(first, first + nTokens);
    });
  }

  async #read(buffer, size) {
    const staging = this.#device.createBuffer({ size, usage: 1 | 8 }); // MAP_READ, COPY_DST
    await this.#submit((encoder) => encoder.copyBufferToBuffer(buffer, 0, staging, 0, size));
    await staging.mapAsync(1); // GPUMapMode.READ
    const bytes = staging.getMappedRange().slice(0);
    staging.destroy();
    return bytes;
  }
}
