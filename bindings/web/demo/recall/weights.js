// The recall model's weights, computed as tools/recall/weights.cc does. Nearly all are zero, so
// a matrix has lists of what is not.
import { gauss } from "./random.js";
import { BOS, CODE_BITS, SEPARATOR, VOCABULARY, codeValue } from "./vocabulary.js";

export const LAYERS = 2;
export const Q_HEADS = 4;
export const KV_HEADS = 2;
export const HEAD_DIM = 128;
export const MODEL_DIM = 192;
export const ROPE_PAIRS = HEAD_DIM / 2;
export const UNKNOWN_LOGIT = 6;

// The layout of the residual stream.
const CONST = 0; // 1 for every token
const BOS_FLAG = 1;
const SEPARATOR_FLAG = 2;
const CODE = 8;
const PREVIOUS = 40; // the previous token's code, by layer 0
export const OUT = 72; // the answer's, by layer 1
const JUNK_IN = 104;
const JUNK_OUT = 136; // never read

const LOGIT_SCALE = Math.sqrt(HEAD_DIM); // undoes the 1/sqrt(headDim) of the attention
const JUNK_GAIN = Math.fround(0.2);
const LOGIT_GAIN = 20;

// Radians per position of pair f, elements f and f + ROPE_PAIRS.
export const ropeFrequency = (f) => Math.pow(1e6, -f / ROPE_PAIRS);

// Row-major [nRows, nCols].
class Matrix {
  constructor(nRows, nCols) {
    this.nRows = nRows;
    this.nCols = nCols;
    this.values = new Float32Array(nRows * nCols);
  }

  set(row, col, value) {
    this.values[row * this.nCols + col] = value;
  }

  add(row, col, value) {
    this.values[row * this.nCols + col] += value;
  }

  // What is not zero: of each row, columns and values.
  sparse() {
    const rows = [];
    for (let i = 0; i < this.nRows; ++i) {
      const cols = [];
      for (let c = 0; c < this.nCols; ++c) {
        if (this.values[i * this.nCols + c] !== 0) cols.push(c);
      }
      const values = Float32Array.from(cols, (c) => this.values[i * this.nCols + c]);
      rows.push({ cols: Uint32Array.from(cols), values });
    }
    return { nRows: this.nRows, nCols: this.nCols, rows };
  }
}

// Maps rows `from`, .. of the residual stream to all elements of a head.
function setRows(w, from, head, values, gain) {
  for (let i = 0; i < values.length; ++i) {
    w.set(from + Math.floor(i / HEAD_DIM), head * HEAD_DIM + (i % HEAD_DIM), values[i] * gain);
  }
}

// Sets the value to the token's code; that of BOS is zero.
function setCodeValues(wv, kvHead) {
  for (let i = 0; i < CODE_BITS; ++i) {
    wv.set(CODE + i, kvHead * HEAD_DIM + i, 1);
    wv.set(BOS_FLAG, kvHead * HEAD_DIM + i, -codeValue(BOS, i));
  }
}

// Maps the first elements of a head to a place in the residual stream.
function setOutput(wo, qHead, to, gain) {
  for (let i = 0; i < CODE_BITS; ++i) wo.set(qHead * HEAD_DIM + i, to + i, gain);
}

// Attends to the token before: query and key agree in the fastest pairs only at that distance.
function setPreviousTokenHead(layer) {
  const pairs = 16;
  const a = Math.sqrt(300 / pairs);
  for (let f = 0; f < pairs; ++f) layer.wk.set(CONST, f, a);
  for (const [head, distance] of [[0, 1], [1, 2]]) {
    for (let f = 0; f < pairs; ++f) {
      const angle = -distance * ropeFrequency(f);
      layer.wq.set(CONST, head * HEAD_DIM + f, a * Math.cos(angle) * LOGIT_SCALE);
      layer.wq.set(CONST, head * HEAD_DIM + f + ROPE_PAIRS, a * Math.sin(angle) * LOGIT_SCALE);
    }
  }
  setCodeValues(layer.wv, 0);
  setOutput(layer.wo, 0, PREVIOUS, 1);
  setOutput(layer.wo, 1, JUNK_OUT, JUNK_GAIN);
}

// Attends to the token whose predecessor is the current one, in the slowest pairs. If there is
// none, BOS takes the weight and contributes nothing.
function setInductionHead(layer) {
  const b = 8; // a match scores b^2
  for (let i = 0; i < CODE_BITS; ++i) {
    const dim = 47 + Math.floor(i / 2) + (i % 2) * ROPE_PAIRS;
    layer.wk.set(PREVIOUS + i, dim, b);
    layer.wq.set(CODE + i, dim, b * LOGIT_SCALE);
  }
  const sinkDim = 63;
  layer.wk.set(BOS_FLAG, sinkDim, 0.72 * b);
  layer.wk.set(SEPARATOR_FLAG, sinkDim, -1.5 * b);
  layer.wq.set(CONST, sinkDim, b * LOGIT_SCALE);
  setCodeValues(layer.wv, 0);
  setOutput(layer.wo, 0, OUT, 1);

  // Its neighbour in the query group is noise.
  const deviation = 0.6 / Math.sqrt(32);
  setRows(layer.wq, JUNK_IN, 1, gauss(21, CODE_BITS * HEAD_DIM, deviation), LOGIT_SCALE / b);
  setOutput(layer.wo, 1, JUNK_OUT, JUNK_GAIN);
}

// KV head 1 and its two query heads spread their attention and carry no answer.
function setDiffuseHeads(layer, index) {
  const n = CODE_BITS * HEAD_DIM;
  const deviation = 1 / Math.sqrt(32);
  setRows(layer.wk, JUNK_IN, 1, gauss(31 + index, n, deviation), 1);
  for (let f = 20; f < 36; ++f) layer.wk.add(CONST, HEAD_DIM + f, 1);
  for (let h = 2; h < Q_HEADS; ++h) {
    setRows(layer.wq, JUNK_IN, h, gauss(41 + 10 * index + h, n, deviation), 1);
    for (let f = 20; f < 36; ++f) layer.wq.add(CONST, h * HEAD_DIM + f, 3);
    setOutput(layer.wo, h, JUNK_OUT, JUNK_GAIN);
  }
  for (let i = 0; i < CODE_BITS; ++i) layer.wv.set(JUNK_IN + i, HEAD_DIM + i, 1);
}

function makeEmbeddings() {
  const embeddings = new Matrix(VOCABULARY, MODEL_DIM);
  const junk = gauss(11, VOCABULARY * CODE_BITS, 1);
  for (let t = 0; t < VOCABULARY; ++t) {
    embeddings.set(t, CONST, 1);
    for (let i = 0; i < CODE_BITS; ++i) {
      embeddings.set(t, CODE + i, codeValue(t, i));
      embeddings.set(t, JUNK_IN + i, junk[t * CODE_BITS + i]);
    }
  }
  embeddings.set(BOS, BOS_FLAG, 1);
  embeddings.set(SEPARATOR, SEPARATOR_FLAG, 1);
  return embeddings.values;
}

export function makeWeights() {
  const layers = Array.from({ length: LAYERS }, () => ({
    wq: new Matrix(MODEL_DIM, Q_HEADS * HEAD_DIM),
    wk: new Matrix(MODEL_DIM, KV_HEADS * HEAD_DIM),
    wv: new Matrix(MODEL_DIM, KV_HEADS * HEAD_DIM),
    wo: new Matrix(Q_HEADS * HEAD_DIM, MODEL_DIM),
  }));
  setPreviousTokenHead(layers[0]);
  setInductionHead(layers[1]);
  layers.forEach(setDiffuseHeads);
  const unembedding = new Matrix(CODE_BITS, VOCABULARY);
  for (let i = 0; i < CODE_BITS; ++i) {
    for (let t = 0; t < VOCABULARY; ++t) unembedding.set(i, t, LOGIT_GAIN * codeValue(t, i));
  }
  return {
    embeddings: makeEmbeddings(), // [VOCABULARY, MODEL_DIM]
    layers: layers.map((layer) => Object.fromEntries(
      Object.entries(layer).map(([name, matrix]) => [name, matrix.sparse()]))),
    unembedding: unembedding.sparse(), // logits from the OUT elements
  };
}
