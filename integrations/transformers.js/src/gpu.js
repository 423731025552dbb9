// Evictions in the GPU buffers where onnxruntime-web left the cache. No row of it is read back.
import { describeQueries } from "./host.js";
import { toGpuPolicy } from "./policy.js";

const STORAGE = 128 | 8 | 4; // and COPY_DST, COPY_SRC
const DTYPES = { float32: ["f32", 4], float16: ["f16", 2] };

export class GpuEvictor {
  by = "webgpu";
  #device;
  #createEvictor;
  #policy;
  #layers;
  #rope;
  #evictors = new Map();
  // Tensors on the GPU are not collected with the cache that they belong to.
  #forgotten = new FinalizationRegistry((lists) => disposeAll(lists));
  #capacity = 0;

  // Throws what the evictor does not know of a policy.
  constructor(device, createEvictor, policy, layers, { rope }) {
    this.#device = device;
    this.#createEvictor = createEvictor;
    this.#policy = toGpuPolicy(policy, policy.resolve(2 ** 31 - 1).budget);
    this.#layers = layers;
    this.#rope = rope && {
      invFreq: rope.invFreq, layout: rope.interleaved ? "interleaved" : "half",
    };
    this.#grow(1);
  }

  // Evictors for caches of so many slots; layers that are alike share one.
  #grow(nSlots) {
    if (nSlots <= this.#capacity) return;
    this.destroy();
    this.#capacity = Math.max(1024, 2 ** Math.ceil(Math.log2(nSlots)));
    for (const layer of this.#layers) {
      const shape = {
        nQHeads: layer.nQHeads, nKvHeads: layer.nKvHeads,
        kHeadDim: layer.kHeadDim, vHeadDim: layer.vHeadDim,
        dtype: DTYPES[layer.type][0], maxTokens: this.#capacity,
        softmaxScale: layer.scale, logitSoftcap: layer.softcap,
      };
      layer.shapeKey = JSON.stringify(shape);
      if (this.#evictors.has(layer.shapeKey)) continue;
      this.#evictors.set(layer.shapeKey, this.#createEvictor(this.#device, {
        shape, policy: this.#policy, ...(this.#policy.rotate && { rope: this.#rope }),
      }));
    }
  }

  // Each layer's last queries: tensors, of which as many stay as the window needs.
  start() {
    const state = { queries: this.#layers.map(() => []) };
    this.#forgotten.register(state, state.queries);
    return state;
  }

  async observe(state, queries) {
    const window = this.#window;
    for (const [l, tensor] of queries.entries()) {
      const list = state.queries[l];
      list.push({ tensor, ...describeQueries(tensor, this.#layers[l].kHeadDim) });
      let rows = list.reduce((sum, { nRows }) => sum + nRows, 0);
      while (rows - list[0].nRows >= window) {
        rows -= list[0].nRows;
        list.shift().tensor.dispose();
      }
    }
  }

  // tova alone has another default than the kinds with a window.
  get #window() {
    return this.#policy.window ?? (this.#policy.kind === "tova" ? 1 : 32);
  }

  destroy() {
    for (const evictor of this.#evictors.values()) evictor.destroy();
    this.#evictors.clear();
  }

  append() {}

  endPrompt() {}

  async evict(state, cache, nSlots, budget) {
    this.#grow(nSlots);
    const owned = []; // buffers for this eviction alone
    const encoder = this.#device.createCommandEncoder({ label: "kvevict" });
    const jobs = cache.map(({ key, value }, l) => {
      const plane = ({ gpuBuffer: buffer, dims }) => {
        const row = dims[3] * DTYPES[this.#layers[l].type][1];
        return { buffer, tokenStrideBytes: row, headStrideBytes: row * nSlots };
      };
      const queries = this.#queries(encoder, state.queries[l], l, owned);
      const evictor = this.#evictors.get(this.#layers[l].shapeKey);
      const view = { k: plane(key), v: plane(value) };
      return { evictor, options: { view, nTokens: nSlots, budget, ...queries } };
    });
    for (const { evictor, options } of jobs) await evictor.prepare(options);
    const kept = jobs.map(({ evictor, options }) => evictor.encode(encoder, options).nTokens);
    const made = cache.map(({ key, value }, l) => ({
      key: this.#shrink(encoder, key, nSlots, kept[l], l),
      value: this.#shrink(encoder, value, nSlots, kept[l], l),
    }));
    this.#device.queue.submit([encoder.finish()]);
    for (const buffer of owned) buffer.destroy();
    if (this.#policy.rotate) disposeAll(state.queries); // they were turned for other slots
    return made;
  }

  // The window's queries as a plane: the last tensor itself if it lies on the GPU and has them
  // all, else copies of several, [rows, heads, dim].
  #queries(encoder, list, l, owned) {
    if (list.length === 0) return {};
    const window = this.#window;
    const { kHeadDim, nQHeads } = this.#layers[l];
    const [first] = list;
    const row = kHeadDim * 4;
    if (list.length === 1 && first.tensor.location === "gpu-buffer") {
      const strides = first.isHeadMajor
        ? { tokenStrideBytes: row, headStrideBytes: row * first.nRows }
        : { tokenStrideBytes: row * nQHeads, headStrideBytes: row };
      return { queries: { buffer: first.tensor.gpuBuffer, dtype: "f32", ...strides },
               firstQuery: first.nRows - window };
    }
    const rows = list.reduce((sum, { nRows }) => sum + nRows, 0);
    const buffer = this.#device.createBuffer({ size: rows * nQHeads * row, usage: STORAGE });
    owned.push(buffer);
    let at = 0;
    for (const { tensor, isHeadMajor, nRows } of list) {
      const pieces = isHeadMajor && nRows > 1 ? nQHeads * nRows : 1;
      const size = (nRows * nQHeads * row) / pieces;
      for (let i = 0; i < pieces; ++i) { // of [heads, rows] or whole
        const to = at + (pieces === 1 ? 0 : ((i % nRows) * nQHeads + Math.floor(i / nRows)) * size);
        if (tensor.location === "gpu-buffer") {
          encoder.copyBufferToBuffer(tensor.gpuBuffer, i * size, buffer, to, size);
        } else {
          this.#device.queue.writeBuffer(buffer, to, tensor.data, (i * size) / 4, size / 4);
        }
      }
      at += nRows * nQHeads * row;
    }
    return {
      queries: { buffer, dtype: "f32", tokenStrideBytes: row * nQHeads, headStrideBytes: row },
      firstQuery: rows - window,
    };
  }

  // A smaller tensor of the first slots of each head.
  #shrink(encoder, tensor, nSlots, kept, l) {
    const [, nHeads, , dim] = tensor.dims;
    const row = dim * DTYPES[this.#layers[l].type][1];
    const size = Math.ceil((nHeads * kept * row) / 16) * 16;
    const buffer = this.#device.createBuffer({ label: "kvevict cache", size, usage: STORAGE });
    for (let head = 0; head < nHeads; ++head) {
      encoder.copyBufferToBuffer(tensor.gpuBuffer, head * nSlots * row,
                                 buffer, head * kept * row, kept * row);
    }
    return tensor.constructor.fromGpuBuffer(buffer, {
      dataType: tensor.type, dims: [1, nHeads, kept, dim], dispose: () => buffer.destroy(),
    });
  }
}

function disposeAll(lists) {
  for (const { tensor } of lists.flatMap((list) => list.splice(0))) tensor.dispose();
}
