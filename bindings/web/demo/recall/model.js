// The recall model's forward pass. Attention is the core's, over a cache in the module's memory.
import { HEAD_DIM, KV_HEADS, LAYERS, MODEL_DIM, OUT, Q_HEADS, ROPE_PAIRS, UNKNOWN_LOGIT,
         makeWeights, ropeFrequency } from "./weights.js";
import { UNKNOWN, VOCABULARY } from "./vocabulary.js";

const Q_ROW = Q_HEADS * HEAD_DIM;
const KV_ROW = KV_HEADS * HEAD_DIM;

// out [nRows, w.nCols] += w.nRows elements of each row, from `first`, times w.
function project(rows, nRows, rowStride, first, w, out) {
  for (let r = 0; r < nRows; ++r) {
    const to = r * w.nCols;
    for (let i = 0; i < w.nRows; ++i) {
      const x = rows[r * rowStride + first + i];
      const { cols, values } = w.rows[i];
      if (x === 0) continue;
      for (let c = 0; c < cols.length; ++c) out[to + cols[c]] += x * values[c];
    }
  }
}

// K and V of every layer, [slots, heads, elements], in the module's memory.
export class Cache {
  constructor(web, kv, nSlots) {
    this.web = web;
    this.nSlots = nSlots;
    this.rowBytes = 4 * KV_ROW;
    this.layers = Array.from({ length: LAYERS }, () => ({
      k: kv.allocate(nSlots * this.rowBytes),
      v: kv.allocate(nSlots * this.rowBytes),
    }));
    this.lengths = new Array(LAYERS).fill(0);
  }

  view(layer) {
    const { tokenMajor, DType } = this.web;
    const { k, v } = this.layers[layer];
    return {
      nKvHeads: KV_HEADS,
      k: tokenMajor(k, KV_HEADS, HEAD_DIM, DType.F32),
      v: tokenMajor(v, KV_HEADS, HEAD_DIM, DType.F32),
    };
  }

  append(layer, k, v) {
    const { k: keys, v: values } = this.layers[layer];
    keys.array(Float32Array).set(k, this.lengths[layer] * KV_ROW);
    values.array(Float32Array).set(v, this.lengths[layer] * KV_ROW);
    this.lengths[layer] += k.length / KV_ROW;
  }

  // The rows that `other` holds.
  copyFrom(other) {
    other.layers.forEach(({ k, v }, layer) => {
      const n = other.lengths[layer] * KV_ROW;
      this.layers[layer].k.array(Float32Array).set(k.array(Float32Array, 0, n));
      this.layers[layer].v.array(Float32Array).set(v.array(Float32Array, 0, n));
    });
    this.lengths = [...other.lengths];
  }

  // Bytes of the rows that it holds.
  get bytes() {
    return this.lengths.reduce((sum, n) => sum + 2 * n * this.rowBytes, 0);
  }
}

export class Model {
  #web;
  #context;
  #weights = makeWeights();
  #cos;
  #sin;
  #queries; // memory for the rows of a chunk
  #heads;
  #sums;

  // For positions below nPositions, and chunks of at most `most` tokens. `kv` is the full module.
  constructor(web, kv, nPositions, most) {
    this.#web = web;
    this.#context = kv.context();
    this.#queries = kv.allocate(4 * most * Q_ROW);
    this.#heads = kv.allocate(4 * most * Q_ROW);
    this.#sums = kv.allocate(4 * KV_HEADS * nPositions);
    // In double, because f32 angles are off by 1e-3 at 16K.
    this.#cos = new Float32Array(nPositions * ROPE_PAIRS);
    this.#sin = new Float32Array(nPositions * ROPE_PAIRS);
    for (let f = 0; f < ROPE_PAIRS; ++f) {
      const frequency = ropeFrequency(f);
      for (let position = 0; position < nPositions; ++position) {
        this.#cos[position * ROPE_PAIRS + f] = Math.cos(position * frequency);
        this.#sin[position * ROPE_PAIRS + f] = Math.sin(position * frequency);
      }
    }
  }

  // Runs tokens from firstPosition on with what the cache holds, and appends their keys and
  // values. observe(layer, queries [rows, heads, elements], sums) gets queries after RoPE and,
  // of each KV head and slot, the attention that the rows paid. Returns, of the rows that
  // `asks` names, the most likely next token.
  forward(tokens, firstPosition, cache, asks, observe) {
    const n = tokens.length;
    const x = new Float32Array(n * MODEL_DIM);
    tokens.forEach((token, r) => {
      x.set(this.#weights.embeddings.subarray(token * MODEL_DIM, (token + 1) * MODEL_DIM),
            r * MODEL_DIM);
    });
    for (let layer = 0; layer < LAYERS; ++layer) {
      const w = this.#weights.layers[layer];
      const rows = (matrix) => {
        const out = new Float32Array(n * matrix.nCols);
        project(x, n, MODEL_DIM, 0, matrix, out);
        return out;
      };
      const [q, k, v] = [rows(w.wq), rows(w.wk), rows(w.wv)];
      this.#rotate(q, Q_HEADS, firstPosition);
      this.#rotate(k, KV_HEADS, firstPosition);
      cache.append(layer, k, v);
      const nSlots = cache.lengths[layer];
      this.#attend(q, cache, layer, n, observe !== undefined);
      observe?.(layer, q, this.#sums.array(Float32Array, 0, KV_HEADS * nSlots));
      project(this.#heads.array(Float32Array, 0, n * Q_ROW), n, Q_ROW, 0, w.wo, x);
    }
    return asks.map((row) => this.#predict(x, row));
  }

  #attend(q, cache, layer, n, withSums) {
    const { tokenMajor, DType } = this.#web;
    this.#queries.array(Float32Array).set(q);
    const nTokens = cache.lengths[layer];
    const sums = {
      nSumHeads: KV_HEADS,
      attentionSums: { data: this.#sums, dtype: DType.F32, headDim: 1, tokenStrideBytes: 4,
                       headStrideBytes: 4 * nTokens },
    };
    this.#context.attend({
      nTokens, view: cache.view(layer), nQHeads: Q_HEADS, nQueries: n,
      queries: tokenMajor(this.#queries, Q_HEADS, HEAD_DIM, DType.F32),
      out: tokenMajor(this.#heads, Q_HEADS, HEAD_DIM, DType.F32),
      ...(withSums ? sums : {}),
    });
  }

  #rotate(rows, nHeads, firstPosition) {
    for (let at = 0; at < rows.length; at += HEAD_DIM) {
      const angles = (firstPosition + Math.floor(at / (nHeads * HEAD_DIM))) * ROPE_PAIRS;
      for (let f = 0; f < ROPE_PAIRS; ++f) {
        const [x1, x2] = [rows[at + f], rows[at + f + ROPE_PAIRS]];
        const [cos, sin] = [this.#cos[angles + f], this.#sin[angles + f]];
        rows[at + f] = x1 * cos - x2 * sin;
        rows[at + f + ROPE_PAIRS] = x1 * sin + x2 * cos;
      }
    }
  }

  #predict(x, row) {
    const logits = new Float32Array(VOCABULARY);
    project(x.subarray(row * MODEL_DIM), 1, MODEL_DIM, OUT, this.#weights.unembedding, logits);
    logits[UNKNOWN] = UNKNOWN_LOGIT;
    return logits.indexOf(logits.reduce((a, b) => Math.max(a, b)));
  }
}
