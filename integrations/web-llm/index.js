// Evicts the KV cache of a web-llm engine between two turns. Experimental: it uses what web-llm
// 0.2.86 does not promise.
import { Checkpoints } from "./checkpoint.js";
import { DTYPES, parseMetadata, shortened } from "./metadata.js";

// The pipeline of a model, and the lock under which an engine uses it.
function pipelineOf(engine, modelId) {
  if (engine?.tvm !== undefined) return { pipeline: engine, lock: undefined };
  const pipelines = engine?.loadedModelIdToPipeline;
  if (!(pipelines instanceof Map)) {
    throw new TypeError("engine is no MLCEngine of this thread: an engine in a worker is evicted there");
  }
  const id = modelId ?? (pipelines.size === 1 ? pipelines.keys().next().value : undefined);
  const pipeline = pipelines.get(id);
  if (pipeline === undefined) {
    throw new Error(`no model ${id ?? "is named"}; loaded: ${Array.from(pipelines.keys()).join(", ")}`);
  }
  return { pipeline, lock: engine.loadedModelIdToLock?.get(id) };
}

// Radians per position, of each pair.
function frequencies(rope, headDim) {
  if (rope.invFreq !== undefined) return Float32Array.from(rope.invFreq);
  const { theta, rotaryDim = headDim, scale = 1 } = rope;
  if (!(theta > 0)) throw new TypeError(`rope.theta ${theta} is not > 0`);
  return Float32Array.from({ length: rotaryDim / 2 }, (_, f) =>
    scale * theta ** ((-2 * f) / rotaryDim));
}

export class WebLLMEvictor {
  #kv;
  #engine;
  #modelId;
  #policy;
  #rope;
  #pipeline; // of which the following are
  #checkpoints;
  #geometry;
  #sequence;

  constructor(kv, engine, { policy, rope, modelId }) {
    if (rope !== null && typeof rope !== "object") {
      throw new TypeError("rope: say how the model rotates keys, or null if its cache has none");
    }
    this.#kv = kv;
    this.#engine = engine;
    this.#modelId = modelId;
    this.#rope = rope;
    this.#policy = kv.policy(policy);
    if (this.#policy.needsQueries) {
      throw new Error(`policy ${policy} scores by queries, which web-llm does not hand out`);
    }
    // The next position follows the stored length: keys are turned to their slots.
    if (rope !== null) this.#policy.rotate = true;
    this.#policy.validate();
  }

  /** Call it when the chat was reset. A cache that is shorter than expected is noticed. */
  reset() {
    this.#sequence?.destroy();
    this.#sequence = undefined;
  }

  async evict() {
    const { pipeline, lock } = pipelineOf(this.#engine, this.#modelId);
    await lock?.acquire();
    try {
      return await this.#evict(pipeline);
    } finally {
      await lock?.release();
    }
  }

  async #evict(pipeline) {
    if (pipeline.kvStateKind !== "kv_cache" || pipeline.kvCache === undefined) {
      throw new Error(`this model has no pure KV cache: its state is ${pipeline.kvStateKind}`);
    }
    if (this.#pipeline !== pipeline) {
      this.#checkpoints?.dispose();
      this.reset();
      this.#checkpoints = new Checkpoints(pipeline);
      this.#pipeline = pipeline;
    }
    const held = parseMetadata(this.#checkpoints.metadata());
    const sequence = this.#sequenceOf(held, pipeline);
    const memories = [];
    try {
      sequence.append(held.length - sequence.storedLength());
      for (const group of held.metadata.groups) {
        const memory = this.#kv.allocate(held.nPages * held.pageBytes);
        memories.push(memory);
        const bytes = await this.#checkpoints.exportGroup(group);
        if (bytes.length !== memory.byteLength) {
          throw new Error(`group ${group.group_index} has ${bytes.length} bytes, ` +
                          `not ${memory.byteLength}`);
        }
        memory.array(Uint8Array).set(bytes);
      }
      sequence.evict(memories.map((memory) => this.#view(held, memory)));
      const length = this.#commonLength(sequence, held);
      const report = { evicted: length < held.length, nTokensBefore: held.length,
                       nTokens: length, bytesBefore: held.nLayers * held.nPages * held.pageBytes,
                       bytes: held.nLayers * Math.ceil(length / held.pageSize) * held.pageBytes };
      if (report.evicted) await this.#import(pipeline, shortened(held, length), memories);
      return report;
    } finally {
      for (const memory of memories) memory.free();
    }
  }

  // The sequence of this chat, new if the cache is another.
  #sequenceOf({ length, nLayers, nKvHeads, headDim, dtype }, pipeline) {
    const rows = { nQHeads: nKvHeads, nKvHeads, kHeadDim: headDim, vHeadDim: headDim };
    const geometry = JSON.stringify([nLayers, rows, dtype]);
    if (this.#geometry !== geometry || length < (this.#sequence?.storedLength() ?? 0)) this.reset();
    if (this.#sequence !== undefined) return this.#sequence;
    const maxTokens = pipeline.contextWindowSize;
    if (!(maxTokens > 0)) throw new Error("the model has a sliding window and evicts by itself");
    const type = this.#kv.dtypes().find(({ name }) => name === DTYPES[dtype]).dtype;
    const context = this.#kv.context();
    const plan = context.plan({
      nLayers, maxTokens, layers: { ...rows, kDtype: type, vDtype: type },
      ...(this.#rope === null ? {} : {
        ropeInvFreq: frequencies(this.#rope, headDim),
        ropeLayout: this.#rope.interleaved ? 1 : 0,
      }),
    }, this.#policy);
    context.destroy();
    this.#geometry = geometry;
    this.#sequence = plan.sequence();
    plan.destroy();
    return this.#sequence;
  }

  // Pages [page, K or V, head, slot, element] as blocks in order.
  #view({ nPages, pageSize, nKvHeads, headDim, dtype, pageBytes }, memory) {
    const type = this.#kv.dtypes().find(({ name }) => name === DTYPES[dtype]);
    const tokenStrideBytes = headDim * type.elementBytes;
    const plane = (data) => ({ data, dtype: type.dtype, headDim, tokenStrideBytes,
                               headStrideBytes: pageSize * tokenStrideBytes,
                               blockStrideBytes: pageBytes });
    return { nKvHeads, k: plane(memory), v: plane(memory.at(pageBytes / 2)), blockSize: pageSize,
             blockTable: Int32Array.from({ length: nPages }, (_, i) => i) };
  }

  // web-llm has one length for all layers and heads.
  #commonLength(sequence, { nLayers, nKvHeads }) {
    const length = sequence.storedLength();
    for (let layer = 0; layer < nLayers; ++layer) {
      for (let head = 0; head < nKvHeads; ++head) {
        const other = sequence.storedLength(layer, head);
        if (other === length) continue;
        throw new Error(`policy ${this.#policy} keeps ${length} tokens in layer 0 and ${other} in ` +
                        `head ${head} of layer ${layer}: web-llm has one length for all`);
      }
    }
    return length;
  }

  async #import(pipeline, metadata, memories) {
    try {
      await this.#checkpoints.import(metadata, (i) =>
        memories[i].array(Uint8Array, 0, metadata.groups[i].nbytes).slice());
      pipeline.filledKVCacheLength = this.#checkpoints.length();
      if (pipeline.filledKVCacheLength !== metadata.seq_length) {
        throw new Error(`the cache then holds ${pipeline.filledKVCacheLength} tokens`);
      }
    } catch (error) {
      // What the cache holds is unknown. An empty one makes web-llm read the chat again.
      this.reset();
      pipeline.resetChat(true);
      throw new Error(`the import of ${metadata.seq_length} tokens failed, and the chat is reset: ` +
                      error.message, { cause: error });
    }
  }

  /** Frees what the evictor holds. */
  destroy() {
    this.reset();
    this.#checkpoints?.dispose();
    this.#policy.destroy();
  }
}
