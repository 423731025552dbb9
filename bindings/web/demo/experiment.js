// Reads the text once; then, for each policy and budget, evicts a copy of the cache and asks for
// every needle: what `kvevict demo` does.
import { Cache, Model } from "./recall/model.js";
import { HEAD_DIM, KV_HEADS, LAYERS, Q_HEADS, ROPE_PAIRS, ropeFrequency } from
  "./recall/weights.js";
import { NEEDLES, QUESTIONS, makeWorkload } from "./recall/workload.js";

const CHUNK = 256;
const WINDOW = 64; // queries that are kept for policies with an observation window

export class Experiment {
  #web;
  #kv;
  #model;
  #context;
  #full;
  #evicted;
  #gpu = null;

  // `web` is the package, `kv` its full module.
  constructor(web, kv, nTokens, seed) {
    this.#web = web;
    this.#kv = kv;
    this.nTokens = nTokens;
    this.workload = makeWorkload(nTokens, seed);
    this.#model = new Model(web, kv, nTokens + 1, CHUNK);
    this.#context = kv.context();
    this.#full = new Cache(web, kv, nTokens + 1); // with room for a question
    this.#evicted = new Cache(web, kv, nTokens + 1);
    this.lastQueries = Array.from({ length: LAYERS }, () => new Float32Array(0));
    this.sums = Array.from({ length: LAYERS }, () => new Float32Array(KV_HEADS * nTokens));
  }

  get fullBytes() {
    return this.#full.bytes;
  }

  // Evictions on the GPU go through `gpu`, a GpuCache; null: there is none.
  useGpu(gpu) {
    this.#gpu = gpu;
    gpu?.upload(this.#full, this.lastQueries, this.sums);
  }

  // Reads one chunk of the text from `done` on, and returns how far it came. It throws if the
  // model does not answer the text's questions: later results would then mean nothing.
  read(done) {
    const { tokens, needles, questions, questionPosition } = this.workload;
    const chunk = tokens.subarray(done, Math.min(done + CHUNK, this.nTokens));
    const asked = questions.map((needle, i) => ({ needle: needles[needle],
                                                  row: questionPosition(i) - done }))
      .filter(({ row }) => row >= 0 && row < chunk.length);
    const answers = this.#model.forward(
      chunk, done, this.#full, asked.map(({ row }) => row),
      (layer, queries, sums) => this.#observe(layer, queries, sums));
    asked.forEach(({ needle }, i) => {
      if (answers[i] === needle.value) return;
      throw new Error(`the full cache answers key ${needle.key} with ${answers[i]} instead of ` +
                      `${needle.value}`);
    });
    return done + chunk.length;
  }

  #observe(layer, queries, sums) {
    const row = Q_HEADS * HEAD_DIM;
    const all = new Float32Array(this.lastQueries[layer].length + queries.length);
    all.set(this.lastQueries[layer]);
    all.set(queries, this.lastQueries[layer].length);
    this.lastQueries[layer] = all.slice(Math.max(0, all.length - WINDOW * row));
    const n = sums.length / KV_HEADS;
    const group = Q_HEADS / KV_HEADS; // the mean of a group, as the policies have it
    for (let i = 0; i < sums.length; ++i) {
      this.sums[layer][Math.floor(i / n) * this.nTokens + (i % n)] += sums[i] / group;
    }
  }

  // Whether evictions of a policy can run on the GPU.
  runsOnGpu(text) {
    return this.#gpu !== null && this.#gpu.has(text);
  }

  // Evicts, by the GPU if it is asked for and can, and asks for all needles.
  async evaluate(text, budget, wantsGpu = false) {
    const policy = this.#kv.policy(text);
    try {
      if (text !== "none") policy.budget = budget;
      const onGpu = wantsGpu && this.runsOnGpu(text);
      const bytesBefore = this.#full.bytes;
      const { kept, milliseconds } = onGpu
        ? await this.#gpu.evict(text, this.#layerBudgets(policy), this.#evicted)
        : this.#evictByCore(policy);
      return { text, budget, onGpu, milliseconds, kept, bytesBefore,
               bytesAfter: this.#evicted.bytes, ...this.#askAll() };
    } finally {
      policy.destroy();
    }
  }

  #layerBudgets(policy) {
    return Array.from(policy.layerBudgets(this.nTokens, LAYERS));
  }

  #evictByCore(policy) {
    const plan = this.#context.plan({
      nLayers: LAYERS, maxTokens: this.nTokens + 1,
      layers: { nQHeads: Q_HEADS, nKvHeads: KV_HEADS, kHeadDim: HEAD_DIM, vHeadDim: HEAD_DIM },
      ropeInvFreq: Float32Array.from({ length: ROPE_PAIRS }, (_, f) => ropeFrequency(f)),
    }, policy);
    const sequence = plan.sequence();
    try {
      this.#evicted.copyFrom(this.#full);
      sequence.append(this.nTokens);
      const views = Array.from({ length: LAYERS }, (_, layer) => this.#evicted.view(layer));
      const inputs = this.#inputs(policy);
      const start = performance.now();
      sequence.evict(views, { inputs });
      const milliseconds = performance.now() - start;
      for (let layer = 0; layer < LAYERS; ++layer) {
        this.#evicted.lengths[layer] = sequence.storedLength(layer);
      }
      const kept = Array.from({ length: LAYERS }, (_, layer) =>
        Array.from({ length: KV_HEADS }, (_, head) => sequence.keepPositions(layer, head)));
      return { kept, milliseconds };
    } finally {
      sequence.destroy();
      plan.destroy();
    }
  }

  // What a policy may read of each layer.
  #inputs(policy) {
    const { tokenMajor, DType, Input, Need } = this.#web;
    const { nQueryRows } = policy.resolve(this.nTokens);
    const row = Q_HEADS * HEAD_DIM;
    return this.lastQueries.map((queries, layer) => {
      const inputs = {};
      if (nQueryRows > 0 && nQueryRows <= WINDOW) {
        inputs.queries = tokenMajor(queries.subarray(queries.length - nQueryRows * row),
                                    Q_HEADS, HEAD_DIM);
      }
      if (policy.need(Input.ATTENTION_SUMS) !== Need.NONE) {
        inputs.nSumHeads = KV_HEADS;
        inputs.attentionSums = { data: this.sums[layer], dtype: DType.F32, headDim: 1,
                                 tokenStrideBytes: 4, headStrideBytes: 4 * this.nTokens };
      }
      return inputs;
    });
  }

  // Asks in branches: a key follows the text, and is then forgotten again.
  #askAll() {
    const lengths = [...this.#evicted.lengths];
    const found = this.workload.needles.map(({ key, value }) => {
      const [answer] = this.#model.forward([key], this.nTokens, this.#evicted, [0]);
      this.#evicted.lengths = [...lengths];
      return answer === value;
    });
    const share = (asked, of) => this.workload.needles
      .filter((needle, i) => needle.asked === asked && found[i]).length / of;
    return { found, asked: share(true, QUESTIONS), unasked: share(false, NEEDLES - QUESTIONS) };
  }
}
