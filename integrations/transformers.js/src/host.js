// Evictions by the core in WebAssembly: keys and values are copied into its memory, evicted
// there, and the survivors become new tensors.
import { DType, RopeLayout, headMajor, tokenMajor } from "@kvevict/web";

const DTYPES = { float32: DType.F32, float16: DType.F16 };

// Whether queries are [1, heads, tokens, dim] or [1, tokens, heads * dim].
export function describeQueries({ dims }, headDim) {
  const isHeadMajor = dims.length === 4;
  const [nHeads, nRows] = isHeadMajor ? [dims[1], dims[2]] : [dims[2] / headDim, dims[1]];
  return { isHeadMajor, nHeads, nRows };
}

export class HostEvictor {
  by = "wasm";
  #kv;
  #plan;
  #layers;

  constructor(kv, policy, layers, { rope, maxTokens }) {
    this.#kv = kv;
    this.#layers = layers;
    const context = kv.context();
    this.#plan = context.plan({
      nLayers: layers.length,
      maxTokens,
      layers: layers.map((layer) => ({
        nQHeads: layer.nQHeads, nKvHeads: layer.nKvHeads,
        kHeadDim: layer.kHeadDim, vHeadDim: layer.vHeadDim,
        kDtype: DTYPES[layer.type], vDtype: DTYPES[layer.type],
        softmaxScale: layer.scale, logitSoftcap: layer.softcap,
      })),
      ...(rope && { ropeInvFreq: Float32Array.from(rope.invFreq),
                    ropeLayout: rope.interleaved ? RopeLayout.INTERLEAVED : RopeLayout.HALF }),
    }, policy);
    context.destroy();
  }

  start(observes) {
    const sequence = this.#plan.sequence();
    return observes ? sequence.beginObserving() : sequence;
  }

  async observe(sequence, queries, firstPosition) {
    const observations = [];
    for (const [l, tensor] of queries.entries()) {
      const { kHeadDim } = this.#layers[l];
      const { isHeadMajor, nHeads, nRows } = describeQueries(tensor, kHeadDim);
      const data = await tensor.getData();
      const plane = isHeadMajor ? headMajor(data, nRows, kHeadDim)
        : tokenMajor(data, nHeads, kHeadDim);
      observations.push({ layer: l, inputs: { queries: plane } });
    }
    const { nRows } = describeQueries(queries[0], this.#layers[0].kHeadDim);
    sequence.observe(observations, nRows, firstPosition);
    for (const tensor of queries) tensor.dispose();
  }

  append(sequence, nTokens) {
    sequence.append(nTokens);
  }

  destroy() {
    this.#plan.destroy();
  }

  endPrompt(sequence) {
    sequence.endPrompt();
  }

  // The tensors of the survivors, or undefined if none had to go.
  async evict(sequence, cache, nSlots) {
    const memories = [];
    const plane = async (tensor, headDim) => {
      const data = await tensor.getData();
      const memory = this.#kv.allocate(data.byteLength);
      memories.push(memory);
      memory.array(Uint8Array).set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
      return { ...headMajor(memory, nSlots, headDim, DTYPES[tensor.type]), data: memory,
               type: data.constructor };
    };
    try {
      const planes = [];
      for (const [l, { key, value }] of cache.entries()) {
        const { kHeadDim, vHeadDim } = this.#layers[l];
        planes.push({ key: await plane(key, kHeadDim), value: await plane(value, vHeadDim) });
      }
      const views = planes.map(({ key, value }, l) => {
        const [{ type: _k, ...k }, { type: _v, ...v }] = [key, value];
        return { nKvHeads: this.#layers[l].nKvHeads, k, v };
      });
      if (!sequence.evict(views).evicted) return undefined;
      return cache.map(({ key, value }, l) => {
        const kept = sequence.storedLength(l);
        return { key: survivors(key, planes[l].key, kept),
                 value: survivors(value, planes[l].value, kept) };
      });
    } finally {
      for (const memory of memories) memory.free();
    }
  }
}

// [1, heads, kept, dim] from the first slots of each head.
function survivors(tensor, { data: memory, type, headStrideBytes }, kept) {
  const [, nHeads, , dim] = tensor.dims;
  const rows = new type(nHeads * kept * dim);
  for (let head = 0; head < nHeads; ++head) {
    rows.set(memory.array(type, head * headStrideBytes, kept * dim), head * kept * dim);
  }
  return new tensor.constructor(tensor.type, rows, [1, nHeads, kept, dim]);
}
