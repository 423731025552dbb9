// What the tests share. It runs in Node and in browsers.
import { Reference } from "./reference.mjs";
import { defaults } from "./decoder.mjs";

// Distinct tokens, since equal ones have keys of equal length, and knorm then ranks roundings.
export const tokens = (n, first = 0) => Array.from({ length: n }, (_, i) => ((first + i) * 37) % 256);
export const best = (logits) => logits.reduce((at, x, i) => (x > logits[at] ? i : at), 0);

// Reads tokens with a session of onnxruntime as every engine does: it passes on what comes out.
export class Reader {
  seen = 0;
  #ort;
  #session;
  #past;

  constructor(ort, session, options) {
    const { kvHeads, dim, halfCache } = { ...defaults, ...options };
    [this.#ort, this.#session] = [ort, session];
    const empty = () => new ort.Tensor(halfCache ? "float16" : "float32", halfCache ? new Uint16Array(0)
      : new Float32Array(0), [1, kvHeads, 0, dim]);
    this.#past = Object.fromEntries(session.inputNames.filter((name) => name.startsWith("past"))
      .map((name) => [name, empty()]));
  }

  get bytes() {
    return Object.values(this.#past).reduce((sum, { dims }) => sum + 4 * dims[1] * dims[2] * dims[3], 0);
  }

  integers(values) {
    return new this.#ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
  }

  // Returns the logits of the last token. `hidden` are positions that attention leaves out;
  // `more` replaces inputs.
  async read(ids, { hidden = new Set(), ...more } = {}) {
    const given = {
      input_ids: this.integers(ids),
      attention_mask: this.integers(Array.from({ length: this.seen + ids.length }, (_, p) => (hidden.has(p) ? 0 : 1))),
      position_ids: this.integers(ids.map((_, i) => this.seen + i)),
      ...this.#past, ...more,
    };
    const feeds = Object.fromEntries(this.#session.inputNames.map((name) => [name, given[name]]));
    const out = await this.#session.run(feeds);
    for (const name of Object.keys(this.#past)) {
      if (this.#past[name].location === "gpu-buffer") this.#past[name].dispose();
      this.#past[name] = out[name.replace("past_key_values", "present")];
    }
    this.seen += ids.length;
    const { data, dims } = out.logits;
    return Array.from(data.slice((ids.length - 1) * dims[2], ids.length * dims[2]));
  }
}

// A prompt, a reply, another prompt and another reply, read by a session that evicts and by the
// reference, at most `chunk` tokens at once. Returns how far their logits are apart at most.
export async function compare(ort, session, eviction, options, policy, { chunk = 128 } = {}) {
  const reader = new Reader(ort, session, options);
  const reference = new Reference(options, policy);
  let apart = 0;
  const steps = [];
  const both = async (ids) => {
    const [ours, theirs] = [await reader.read(ids), reference.read(ids)];
    ours.forEach((x, i) => { apart = Math.max(apart, Math.abs(x - theirs[i])); });
    steps.push(eviction.last.stored - reference.stored);
  };
  for (const [nPrompt, first] of [[90, 0], [30, 102]]) {
    for (let i = 0; i < nPrompt; i += chunk) await both(tokens(Math.min(chunk, nPrompt - i), first + i));
    for (let i = 0; i < 12; ++i) await both(tokens(1, first + nPrompt + i));
  }
  return { apart, isAsLong: steps.every((difference) => difference === 0), evictions: reference.evictions,
           seen: reader.seen, bytes: reader.bytes };
}

// Graphs and policies that every provider is tried with.
export const graphs = [
  { kind: "decomposed" },
  { kind: "decomposed", heads: 6, kvHeads: 2 }, // groups of three
  { kind: "gqa" },
  { kind: "gqa-packed", heads: 6, kvHeads: 3 },
  { kind: "gqa-positions" },
  { kind: "mha", heads: 4, kvHeads: 4 },
];
export const policies = [
  { kind: "streaming-llm", budget: 40 },
  { kind: "knorm", budget: 40, margin: 5 },
  { kind: "keydiff", budget: 40, margin: 5 },
  { kind: "snapkv", budget: 40, window: 8, margin: 8 },
  { kind: "tova", budget: 40 },
  { kind: "knorm", budget: 0.5 },
];
export const textOf = ({ kind, ...parameters }) =>
  `${kind}:${Object.entries(parameters).map(([key, value]) => `${key}=${value}`).join(",")}`;

// A model's files, by their names.
export function filesOf(options, onnx, config = {}) {
  const { layers, heads, kvHeads, dim, vocabulary, maxPositions } = { ...defaults, ...options };
  const all = { model_type: "llama", architectures: ["LlamaForCausalLM"], hidden_size: heads * dim,
    num_attention_heads: heads, num_key_value_heads: kvHeads, num_hidden_layers: layers, head_dim: dim,
    vocab_size: vocabulary, max_position_embeddings: maxPositions, ...config };
  return { "config.json": JSON.stringify(all), "generation_config.json": "{}", "onnx/model.onnx": onnx };
}

// A chat by generate(), and what the reference would say. `turns` have the lengths of prompts
// and replies. Returns both and what became of the cache.
export const threeTurns = [[90, 8], [20, 1], [15, 8]];
export async function chat({ Tensor }, model, eviction, options, policy, turns = threeTurns) {
  const reference = new Reference(options, policy);
  const integers = (values) => new Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
  let cache = null;
  let history = [];
  const [said, expected] = [[], []];
  for (const [nPrompt, nReply] of turns) {
    history.push(...tokens(nPrompt, history.length));
    for (let next, i = 0; i < nReply; ++i) {
      // The last token of the turn before has not been read yet.
      next = best(reference.read(i === 0 ? history.slice(reference.seen) : [next]));
      expected.push(next);
    }
    const out = await model.generate({ input_ids: integers(history), attention_mask: integers(history.map(() => 1)),
      past_key_values: cache, max_new_tokens: nReply, do_sample: false, return_dict_in_generate: true });
    cache = out.past_key_values;
    history = Array.from(out.sequences.data, Number);
    said.push(...history.slice(-nReply));
  }
  return { said, expected, seen: eviction.seen(cache), stored: cache["past_key_values.0.key"].dims[2],
           referenceStored: reference.stored, evictions: reference.evictions, cache };
}
