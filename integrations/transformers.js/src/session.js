// Eviction around the run() of an onnxruntime-web session. What a run returns as present.N.key
// and present.N.value are the survivors; whoever passes them on as past_key_values goes on as if
// nothing had been evicted: with positions that count on and a mask of all tokens seen.
import { inspectGraph } from "./graph.js";
import { HostEvictor, describeQueries } from "./host.js";
import { loadCore, makePolicy } from "./policy.js";

const pastKey = /^past_key_values\.(\d+)\.key$/;
const MOST_TOKENS = 32768;
const evicting = new WeakSet(); // sessions

/** See index.d.ts. */
export async function evictSession(session, options = {}) {
  const { graph, onnx, rope, maxTokens, env, onStep, ...policy } = options;
  const kv = await loadCore();
  const known = graph ?? (onnx && inspectGraph(onnx));
  return new Eviction(kv, session, makePolicy(kv, policy),
                      { graph: known, rope, maxTokens, env, onStep });
}

export class Eviction {
  #kv;
  #session;
  #run;
  #policy;
  #options;
  #layers; // their numbers, and from the first run on their shapes
  #rope;
  #evictor;
  // By the tensor of the first layer's keys: the sequence that it belongs to, and how many
  // tokens that had seen and held then.
  #known = new WeakMap();
  /** What the last run did. */
  last;
  /** A reason to leave the next runs alone. */
  pause;

  constructor(kv, session, policy, options) {
    this.#kv = kv;
    this.#session = session;
    this.#policy = policy;
    this.#options = options;
    this.#layers = session.inputNames.map((name) => pastKey.exec(name)?.[1])
      .filter((layer) => layer !== undefined).map((layer) => ({ layer: Number(layer) }))
      .sort((a, b) => a.layer - b.layer);
    this.policy = String(policy);
    if (this.policy === "none") return; // the session stays as it is
    this.#refuseUnknown();
    if (evicting.has(session)) throw new Error("the session evicts already: remove() that first");
    evicting.add(session);
    this.policy = String(policy); // which may rotate now
    this.#run = session.run;
    session.run = (feeds, ...rest) => this.#step(feeds, rest);
  }

  #refuseUnknown() {
    const { inputNames, outputNames } = this.#session;
    if (this.#layers.length === 0) {
      throw new Error("the session has no input past_key_values.N.key: it is no known decoder");
    }
    const { graph, rope } = this.#options;
    const takesPositions = inputNames.includes("position_ids");
    if (!takesPositions && graph === undefined) {
      throw new Error("the graph has no input position_ids; how it numbers tokens stands in its " +
        "file: pass its bytes as `onnx`");
    }
    if (graph?.positions === "length") {
      this.#rope = rope ?? graph.rope;
      if (this.#rope === undefined) {
        throw new Error("the graph rotates keys by their slots, and its table lies in another " +
          "file: pass `rope` with the frequencies");
      }
      this.#policy.set("rotate", true);
    } else if (this.#policy.rotate) {
      throw new Error(`policy "${this.#policy}": the graph takes position_ids, which count on, ` +
        "so keys must not be rotated to their slots");
    }
    const hasQueries = this.#layers.every(({ layer }) => outputNames.includes(`query.${layer}`));
    if (this.#policy.needsQueries && !hasQueries) {
      throw new Error(`policy "${this.#policy}" scores by queries, and the graph has no outputs ` +
        "query.N: addQueryOutputs() adds them");
    }
  }

  /** Tokens that a cache, an object of past_key_values.N.key and others, has seen. */
  seen(cache) {
    const key = cache[`past_key_values.${this.#layers[0].layer}.key`];
    if (key === undefined) return 0;
    return this.#known.get(key.ort_tensor ?? key)?.logical ?? key.dims.at(-2);
  }

  /** Gives the session its own run() back. */
  remove() {
    if (!evicting.has(this.#session) || this.#run === undefined) return;
    evicting.delete(this.#session);
    delete this.#session.run; // that of its class is back
    if (this.#session.run !== this.#run) this.#session.run = this.#run;
    this.#evictor?.destroy();
  }

  #tensorsOf(values, prefix) {
    return this.#layers.map(({ layer }) => ({
      key: values[`${prefix}.${layer}.key`], value: values[`${prefix}.${layer}.value`],
    }));
  }

  async #step(feeds, rest) {
    const [{ key: past }] = this.#tensorsOf(feeds, "past_key_values");
    const [batch, nNew] = (feeds.input_ids ?? feeds.inputs_embeds).dims;
    const state = this.#stateOf(past, feeds, batch, nNew);
    const run = (given) => this.#run.call(this.#session, given, ...rest);
    const out = await run(this.#shorten(feeds, state, nNew));
    const queries = this.#takeQueries(out);
    const cache = this.#tensorsOf(out, "present");
    const isWhole = cache.every(({ key, value }) => key !== undefined && value !== undefined);
    if (!isWhole || (this.#policy.needsQueries && queries.length < cache.length)) {
      throw new Error("the run was not asked for every present.N.key, present.N.value and query.N");
    }
    const total = { seen: state.logical + nNew, bytesBefore: bytesOf(cache) };
    let reason = state.alone;
    if (reason === undefined) {
      await this.#prepare(cache, queries);
      await this.#append(state, queries, nNew);
      reason = await this.#evict(state, cache, out);
    } else {
      state.logical += nNew;
      state.stored += nNew;
      for (const tensor of queries) tensor.dispose();
    }
    const now = this.#tensorsOf(out, "present");
    state.last = now[0].key;
    this.#known.set(state.last, { state, logical: state.logical, stored: state.stored });
    this.last = { ...total, stored: state.stored, bytesAfter: bytesOf(now), by: this.#evictor?.by,
                  evicted: reason === undefined, reason };
    this.#options.onStep?.(this.last);
    return out;
  }

  // What is known of the past that a run is given.
  #stateOf(past, feeds, batch, nNew) {
    const [, , nPast] = past.dims;
    const known = this.#known.get(past);
    const isLast = known?.state.last === past;
    if (known !== undefined && !isLast && known.stored < known.logical) {
      throw new Error(`this cache of ${known.stored} of ${known.logical} tokens has been read on ` +
        `from already: its sequence now has ${known.state.logical}`);
    }
    // A past that is not known, or was kept from before an eviction, has all of its tokens.
    const state = isLast ? known.state
      : { logical: nPast, stored: nPast, rows: 0, sinceDue: 0, isNew: true };
    const alone = this.#reasonToLeave(feeds, batch);
    if (alone !== undefined) {
      if (state.stored < state.logical) {
        throw new Error(`${alone}, but tokens of this cache have been evicted: use an empty one`);
      }
      state.alone = alone;
    }
    if (state.alone !== undefined) return state;
    const { attention_mask: mask, position_ids: positions } = feeds;
    const wanted = state.logical + nNew;
    if (mask !== undefined && mask.dims[1] !== wanted) {
      const why = isLast ? "It is of all tokens, evicted ones too"
        : "This cache is not from a run of this session";
      throw new Error(`attention_mask has ${mask.dims[1]} tokens, not ${wanted}: ` +
        `${state.logical} seen and ${nNew} new. ${why}`);
    }
    if (positions !== undefined) {
      const first = Number(positions.data[0]);
      state.firstPosition ??= first - state.logical; // some models count from 1
      if (first !== state.firstPosition + state.logical) {
        throw new Error(`position_ids begin with ${first}, but ${state.logical} tokens were seen: ` +
          "positions count on after an eviction");
      }
    }
    return state;
  }

  #reasonToLeave({ attention_mask: mask, position_ids: positions }, batch) {
    if (this.pause !== undefined) return this.pause;
    if (batch !== 1) return `a batch of ${batch}: only single sequences are evicted`;
    for (const [name, tensor] of Object.entries({ attention_mask: mask, position_ids: positions })) {
      if (tensor !== undefined && tensor.dims.length !== 2) {
        return `${name} has ${tensor.dims.length} axes instead of 2`;
      }
    }
    if (mask?.data.some((shown) => Number(shown) !== 1)) return "attention_mask hides tokens";
    return undefined;
  }

  // The mask of the slots that are held and the new tokens.
  #shorten(feeds, { stored, logical }, nNew) {
    const { attention_mask: mask } = feeds;
    if (mask === undefined || stored === logical) return feeds;
    const shown = mask.data.slice(0, stored + nNew);
    return { ...feeds, attention_mask: new mask.constructor(mask.type, shown, [1, stored + nNew]) };
  }

  // The outputs query.N, which nobody else sees.
  #takeQueries(out) {
    const names = this.#layers.map(({ layer }) => `query.${layer}`).filter((name) => name in out);
    const tensors = names.map((name) => out[name]);
    for (const name of names) delete out[name];
    if (this.#policy.needsQueries) return tensors;
    for (const tensor of tensors) tensor.dispose();
    return [];
  }

  // Shapes are those of the first run.
  async #prepare(cache, queries) {
    if (this.#evictor !== undefined) return;
    const { graph, maxTokens = MOST_TOKENS, env } = this.#options;
    const layers = this.#layers.map(({ layer }, l) => {
      const { key, value } = cache[l];
      if (key.dims.length !== 4 || value.dims.length !== 4) {
        throw new Error(`present.${layer}.key is [${key.dims}], not [1, heads, tokens, dim]`);
      }
      const [, nKvHeads, , kHeadDim] = key.dims;
      if (key.type !== value.type || !["float32", "float16"].includes(key.type)) {
        throw new Error(`present.${layer}.key is ${key.type}: float32 and float16 are known`);
      }
      let nQHeads = nKvHeads;
      if (queries.length > 0) {
        ({ nHeads: nQHeads } = describeQueries(queries[l], kHeadDim));
        if (nQHeads % nKvHeads !== 0) {
          throw new Error(`query.${layer} is [${queries[l].dims}], ${nQHeads} heads of ${kHeadDim} ` +
            `elements: no multiple of ${nKvHeads} KV heads`);
        }
      }
      const { scale = 0, softcap = 0 } = graph?.layers.find((one) => one.layer === layer) ?? {};
      return { layer, nQHeads, nKvHeads, kHeadDim, vHeadDim: value.dims[3], type: key.type,
               scale, softcap };
    });
    const options = { rope: this.#rope, maxTokens };
    if (cache[0].key.location === "gpu-buffer") {
      this.#evictor = await this.#onGpu(layers, options, env);
    }
    this.#evictor ??= new HostEvictor(this.#kv, this.#policy, layers, options);
  }

  // The evictor in GPU buffers; where it does not know the policy, `by` says why the core does
  // the work, with a copy of the cache to the CPU and back.
  async #onGpu(layers, options, env) {
    const { createEvictor } = await import("@kvevict/web/webgpu");
    const { GpuEvictor } = await import("./gpu.js");
    const { webgpu } = env ?? (await import("@huggingface/transformers")).env.backends.onnx;
    const device = await webgpu.device;
    try {
      return new GpuEvictor(device, createEvictor, this.#policy, layers, options);
    } catch (error) {
      if (!(error instanceof RangeError || error instanceof TypeError)) throw error;
      const host = new HostEvictor(this.#kv, this.#policy, layers, options);
      host.by = `wasm, the cache is copied there and back: ${error.message}`;
      return host;
    }
  }

  async #append(state, queries, nNew) {
    if (state.isNew) {
      state.isNew = false;
      state.sequence = this.#evictor.start(this.#policy.needsQueries);
      this.#evictor.append(state.sequence, state.logical);
    }
    if (queries.length > 0) {
      const { nRows } = describeQueries(queries[0], 1);
      this.#refuseFewQueries(nRows, nNew);
      state.rows = nRows < nNew ? nRows : state.rows + nRows;
      await this.#evictor.observe(state.sequence, queries, state.logical + nNew - nRows);
    }
    this.#evictor.append(state.sequence, nNew);
    state.logical += nNew;
    state.stored += nNew;
    state.sinceDue += nNew;
  }

  #refuseFewQueries(nRows, nNew) {
    const window = this.#policy.resolve(MOST_TOKENS).nQueryRows;
    if (nRows < nNew && nRows < window) {
      throw new Error(`policy "${this.#policy}" needs ${window} queries, the graph gives the last ` +
        `${nRows} of ${nNew}: addQueryOutputs(bytes, { window: ${window} })`);
    }
  }

  // Evicts into `out` if it is time. Returns the reason if it did not.
  async #evict(state, cache, out) {
    const endPrompt = () => {
      this.#evictor.endPrompt(state.sequence);
      state.promptEnded = true;
      state.sinceDue = 0;
    };
    if (!state.promptEnded && this.#policy.prompt !== "inside") endPrompt();
    const { maxTokens = MOST_TOKENS } = this.#options;
    const { budget, nQueryRows } = this.#policy.resolve(Math.min(state.logical, maxTokens));
    let reason = this.#reasonToWait(state, budget, nQueryRows);
    if (reason === undefined) {
      const kept = await this.#evictor.evict(state.sequence, cache, state.stored, budget);
      if (kept === undefined) reason = "the policy left all layers alone";
      else this.#replace(state, cache, kept, out);
    }
    if (!state.promptEnded) endPrompt();
    return reason;
  }

  #reasonToWait({ stored, rows, promptEnded, sinceDue }, budget, nQueryRows) {
    const { margin, every } = this.#policy;
    if (stored <= budget + margin) {
      return `${stored} tokens are within budget ${budget} and margin ${margin}`;
    }
    if (promptEnded && every > 1 && sinceDue < every) return `${sinceDue} of every ${every} tokens`;
    if (rows < nQueryRows) return `${rows} queries of a window of ${nQueryRows}`;
    return undefined;
  }

  #replace(state, cache, kept, out) {
    for (const [l, { layer }] of this.#layers.entries()) {
      for (const name of ["key", "value"]) {
        cache[l][name].dispose();
        out[`present.${layer}.${name}`] = kept[l][name];
      }
    }
    state.stored = kept[0].key.dims[2];
    state.sinceDue = 0;
    if (this.#policy.rotate) state.rows = 0; // queries were turned for other slots
  }
}

const bytesOf = (cache) =>
  cache.reduce((sum, { key, value }) => sum + sizeOf(key) + sizeOf(value), 0);
const sizeOf = ({ dims, type }) =>
  dims.reduce((product, dim) => product * dim, 1) * (type === "float16" ? 2 : 4);
