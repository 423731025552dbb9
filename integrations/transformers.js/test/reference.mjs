// The decoder of decoder.mjs in double precision, with an eviction by the mathematics of
// POLICIES. It shares no code with the adapter, the core or the kernels.
import { keyDiffs, keyNorms, pool, reduceRows, rotate, select, windowScores } from "../../../bindings/web/webgpu/test/oracle.js";
import { defaults, isByLength, makeWeights } from "./decoder.mjs";

const times = (row, matrix, columns) => {
  const out = new Float64Array(columns);
  row.forEach((x, i) => {
    for (let c = 0; c < columns; ++c) out[c] += x * matrix[i * columns + c];
  });
  return out;
};
const split = (row, n) => Array.from({ length: n }, (_, h) =>
  Array.from(row.subarray(h * row.length / n, (h + 1) * row.length / n)));
const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

// `policy` has kind, budget (up to 1 a share of the tokens seen) and, where they are not the core's defaults, sink, window and margin.
// Graphs that rotate by length have keys that are turned to their slots.
export class Reference {
  seen = 0;
  evictions = 0;
  #options;
  #weights;
  #policy;
  #frequencies;
  #layers;

  constructor(options, policy) {
    this.#options = { ...defaults, ...options };
    const { layers, kvHeads, dim } = this.#options;
    const hasWindow = policy.kind === "snapkv" || policy.kind === "tova";
    this.#policy = { sink: policy.kind === "tova" ? 0 : 4, margin: 0, byLength: isByLength(options),
                     window: { snapkv: 32, tova: 1 }[policy.kind] ?? 0, ...policy, hasWindow };
    this.#weights = makeWeights(options);
    this.#frequencies = Array.from({ length: dim / 2 }, (_, f) => 10000 ** (-2 * f / dim));
    // Each head's entries: key before rotation, value, and what it is rotated by.
    this.#layers = Array.from({ length: layers }, () =>
      ({ heads: Array.from({ length: kvHeads }, () => []), queries: [] }));
  }

  get stored() {
    return this.#layers[0].heads[0].length;
  }

  // The last rows, as many as the window has: lists of each head's query.
  queriesOf(layer) {
    return this.#layers[layer].queries;
  }

  // Reads tokens, evicts if it is time, and returns the logits of the last one.
  read(ids) {
    let logits;
    for (const id of ids) logits = this.#readOne(id);
    const { budget: given, margin, window } = this.#policy;
    const budget = given <= 1 ? Math.floor(given * this.seen) : given;
    if (given !== undefined && this.stored > budget + margin &&
        this.#layers[0].queries.length >= window) {
      for (const layer of this.#layers) this.#evict(layer, budget);
      ++this.evictions;
    }
    return logits;
  }

  #readOne(id) {
    const { heads, kvHeads, dim, vocabulary } = this.#options;
    const width = heads * dim;
    const at = this.#policy.byLength ? this.stored : this.seen;
    let x = Float64Array.from(this.#weights.embedding.subarray(id * width, (id + 1) * width));
    for (const [l, layer] of this.#layers.entries()) {
      const { q, k, v, o } = this.#weights.layers[l];
      const keys = split(times(x, k, kvHeads * dim), kvHeads);
      const values = split(times(x, v, kvHeads * dim), kvHeads);
      layer.heads.forEach((entries, h) => entries.push({ key: keys[h], value: values[h], at }));
      const queries = split(times(x, q, width), heads)
        .map((row) => rotate(row, at, this.#frequencies, "half"));
      layer.queries.push(queries);
      if (layer.queries.length > this.#policy.window) layer.queries.shift();
      const mixed = queries.flatMap((query, h) =>
        this.#attend(query, layer.heads[Math.floor(h / (heads / kvHeads))]));
      const out = times(mixed, o, width);
      x = x.map((value, i) => value + out[i]);
    }
    ++this.seen;
    return times(x, this.#weights.head, vocabulary);
  }

  #keys(entries) {
    return entries.map(({ key, at }) => rotate(key, at, this.#frequencies, "half"));
  }

  #attend(query, entries) {
    const { dim } = this.#options;
    const exps = this.#keys(entries).map((key) => Math.exp(dot(query, key) / Math.sqrt(dim)));
    const sum = exps.reduce((a, b) => a + b, 0);
    return Array.from({ length: dim }, (_, d) =>
      entries.reduce((all, { value }, i) => all + exps[i] / sum * value[d], 0));
  }

  #evict(layer, budget) {
    const { kind, sink, window, hasWindow, byLength } = this.#policy;
    const nTokens = layer.heads[0].length; // earlier layers are evicted already
    const recent = kind === "streaming-llm" ? budget - sink : window;
    const scores = kind === "streaming-llm" ? layer.heads.map(() => []) : hasWindow
      ? this.#windowScores(layer) : layer.heads.map((entries) =>
        (kind === "knorm" ? keyNorms : keyDiffs)(this.#keys(entries)));
    const lists = scores.map((row) =>
      select(row, { nTokens, nKeep: budget, sink, recent, tie: "lower" }));
    layer.heads = layer.heads.map((entries, h) => lists[h].map((slot, i) =>
      ({ ...entries[slot], ...(byLength && { at: i }) })));
    if (byLength) layer.queries = [];
  }

  #windowScores({ heads: all, queries: rows }) {
    const { heads, kvHeads, dim } = this.#options;
    const { kind, window } = this.#policy;
    const nTokens = all[0].length;
    const queries = Array.from({ length: heads }, (_, h) => rows.map((row) => row[h])).flat(2);
    const weights = windowScores({ keys: all.flatMap((entries) => this.#keys(entries)).flat(), queries,
      nKvHeads: kvHeads, nQHeads: heads, nTokens, window, dim, scale: 1 / Math.sqrt(dim), softcap: 0,
      rows: "mean" });
    const ofGroups = reduceRows(weights, heads / kvHeads, nTokens, "mean");
    if (kind === "tova") {
      const ofLayer = reduceRows(ofGroups, kvHeads, nTokens, "mean");
      return all.map(() => Array.from(ofLayer));
    }
    return all.map((_, h) => {
      const row = ofGroups.subarray(h * nTokens, (h + 1) * nTokens - window);
      return [...pool(row, 7, "avg", "pad"), ...Array(window).fill(0)];
    });
  }
}
