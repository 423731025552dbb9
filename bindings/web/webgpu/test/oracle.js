// The mathematics in double precision, naive; shares no code with the module.

/** Weights of the window's softmax, reduced over its rows: [query heads, slots]. */
export function windowScores({
  keys,
  queries,
  nKvHeads,
  nQHeads,
  nTokens,
  window,
  dim,
  scale,
  softcap,
  rows,
}) {
  const out = new Float64Array(nQHeads * nTokens);
  const group = nQHeads / nKvHeads;
  for (let h = 0; h < nQHeads; h++) {
    const keyHead = Math.floor(h / group);
    const column = Array.from({ length: nTokens }, () => []);
    for (let w = 0; w < window; w++) {
      const n = nTokens - window + w + 1;
      const logits = [];
      for (let j = 0; j < n; j++) {
        let x = 0;
        for (let d = 0; d < dim; d++)
          x += queries[(h * window + w) * dim + d] * keys[(keyHead * nTokens + j) * dim + d];
        x *= scale;
        if (softcap > 0) x = softcap * Math.tanh(x / softcap);
        logits.push(x);
      }
      // Math.max is NaN if any is; +infinity makes NaN of infinity - infinity.
      const greatest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
      const exps = logits.map((x) => Math.exp(x - greatest));
      const sum = exps.reduce((a, b) => a + b, 0);
      exps.forEach((e, j) => column[j].push(e / sum));
    }
    for (let j = 0; j < nTokens; j++) {
      const sum = column[j].reduce((a, b) => a + b, 0);
      const most = column[j].reduce((a, b) => Math.max(a, b), 0);
      out[h * nTokens + j] = rows === 'max' ? most : rows === 'sum' ? sum : sum / window;
    }
  }
  return out;
}

export function reduceRows(rows, nTerms, n, reduce) {
  const nRows = rows.length / nTerms / n;
  const out = new Float64Array(nRows * n);
  for (let r = 0; r < nRows; r++) {
    for (let j = 0; j < n; j++) {
      const terms = Array.from({ length: nTerms }, (_, t) => rows[(r * nTerms + t) * n + j]);
      const sum = terms.reduce((a, b) => a + b, 0);
      out[r * n + j] =
        reduce === 'max' ? Math.max(...terms) : reduce === 'sum' ? sum : sum / nTerms;
    }
  }
  return out;
}

export function pool(row, width, kind, edge) {
  return Array.from(row, (_, i) => {
    const terms = [];
    for (let j = i - (width - 1) / 2; j <= i + (width - 1) / 2; j++)
      if (j >= 0 && j < row.length) terms.push(row[j]);
    if (kind === 'max') return Math.max(...terms);
    return terms.reduce((a, b) => a + b, 0) / (edge === 'pad' ? width : terms.length);
  });
}

const length = (x) => Math.sqrt(x.reduce((sum, e) => sum + e * e, 0));

export const keyNorms = (rows) => rows.map((k) => -length(k));

/** Minus the cosine of each key with the mean direction of those that have one. */
export function keyDiffs(rows) {
  const isWhole = (k) => k.every(Number.isFinite);
  const mean = rows[0].map(() => 0);
  for (const k of rows) {
    if (isWhole(k)) k.forEach((e, d) => (mean[d] += e / Math.max(length(k), 1e-12) / rows.length));
  }
  const size = Math.max(length(mean), 1e-8);
  return rows.map((k) =>
    isWhole(k)
      ? -k.reduce((sum, e, d) => sum + e * mean[d], 0) / size / Math.max(length(k), 1e-8)
      : NaN,
  );
}

/**
 * The means of the two softmaxes that LagKV ranks, 1 where nothing is ranked, and
 * for each slot the greatest spread of its partition.
 */
export function lagMeans(keys, values, sink, block) {
  const n = keys.length;
  const out = new Float64Array(n).fill(1);
  const greatest = new Float64Array(n);
  const nPartitions = Math.floor((n - sink) / block);
  if (nPartitions < 2) {
    for (let t = sink; t < n; t++) out[t] = (t - sink) / (n - sink);
    return { means: out, greatest };
  }
  for (let p = 0; p + 1 < nPartitions; p++) {
    const first = sink + p * block;
    const weigh = (rows) => {
      const own = rows.slice(first, first + block);
      const next = rows.slice(first + block, first + 2 * block);
      const spreads = own.map((x) => {
        const scaled = x.map((e, d) => {
          const column = next.map((y) => y[d]).filter((y) => !Number.isNaN(y));
          const low = Math.min(...column);
          const range = Math.max(...column) - low;
          return range > 0 && Number.isFinite(range) ? (e - low) / range : e * 0;
        });
        const mean = scaled.reduce((a, b) => a + b, 0) / scaled.length;
        const squares = scaled.reduce((a, b) => a + (b - mean) ** 2, 0);
        return scaled.length === 1 ? scaled[0] * 0 : Math.sqrt(squares / (scaled.length - 1));
      });
      const most = Math.max(...spreads.filter((s) => !Number.isNaN(s)));
      greatest.fill(Math.max(most, greatest[first]), first, first + block);
      const exps = spreads.map((s) => Math.exp(s - most));
      const sum = exps.filter((e) => !Number.isNaN(e)).reduce((a, b) => a + b, 0);
      return exps.map((e) => e / sum);
    };
    const ofKeys = weigh(keys);
    const ofValues = weigh(values);
    for (let i = 0; i < block; i++) out[first + i] = (ofKeys[i] + ofValues[i]) / 2;
  }
  return { means: out, greatest };
}

/** Ranks of one partition: lower tokens / partition; NaN is lower than any. */
export function lagRanks(means) {
  return means.map((own, i) => {
    if (Number.isNaN(own)) return NaN;
    const isLower = (x, j) => Number.isNaN(x) || x < own || (x === own && j > i);
    return means.filter(isLower).length / means.length;
  });
}

/** What stays of one list: descending score, ties by slot, NaN last. */
export function select(scores, { nTokens, nKeep, sink, recent, tie }) {
  const forced = (i) => i < sink || i >= nTokens - recent;
  const middle = Array.from({ length: nTokens }, (_, i) => i).filter((i) => !forced(i));
  const rank = (i) => (Number.isNaN(scores[i]) ? [1, 0] : [0, -scores[i]]);
  middle.sort((a, b) => {
    const [x, y] = [rank(a), rank(b)];
    if (x[0] !== y[0]) return x[0] - y[0];
    if (x[1] < y[1]) return -1;
    if (x[1] > y[1]) return 1;
    return tie === 'higher' ? b - a : a - b;
  });
  const ends = Array.from({ length: nTokens }, (_, i) => i).filter(forced);
  return [...ends, ...middle.slice(0, nKeep - ends.length)].sort((a, b) => a - b);
}

/** A row rotated by so many positions. */
export function rotate(row, offset, frequencies, layout) {
  const out = Array.from(row);
  frequencies.forEach((w, f) => {
    const [i, j] = layout === 'interleaved' ? [2 * f, 2 * f + 1] : [f, f + frequencies.length];
    // An angle of some thousand radians is exact enough in double.
    const [c, s] = [Math.cos(offset * w), Math.sin(offset * w)];
    out[i] = row[i] * c - row[j] * s;
    out[j] = row[i] * s + row[j] * c;
  });
  return out;
}
