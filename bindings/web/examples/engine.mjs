// The engine of bindings/examples/engine in JavaScript: node engine.mjs [seed]. Its cache lies
// in the module's memory, so that an eviction copies nothing in or out.
const { load, tokenMajor, DType } = await import(process.env.KVEVICT_WEB ?? "@kvevict/web");

const [L, QH, KVH, D, MAX, PROMPT, STEPS, DRAFTS] = [2, 4, 2, 16, 160, 104, 12, 3];
const [X, KV] = [QH * D, KVH * D];
const seed = Number(process.argv[2] ?? 1);
let checksum = 14695981039346656037n;

const kv = await load();
const context = kv.context();
const policy = kv.policy("snapkv:budget=40,window=8,sink=2");
const plan = context.plan(
  { nLayers: L, maxTokens: MAX,
    layers: { nQHeads: QH, nKvHeads: KVH, kHeadDim: D, vHeadDim: D } },
  policy, { draftTokens: DRAFTS });
policy.destroy();
const sequence = plan.sequence().beginObserving();

const rows = () => kv.allocate(4 * MAX * KV);
const caches = Array.from({ length: L }, () => ({ k: rows(), v: rows() }));
const views = caches.map(({ k, v }) => ({
  nKvHeads: KVH, k: tokenMajor(k, KVH, D, DType.F32), v: tokenMajor(v, KVH, D, DType.F32),
}));
const queries = caches.map(() => new Float32Array(X));
const x = new Int32Array(X);

function hash(a) {
  let h = Math.imul(a ^ seed, 2654435761);
  h = Math.imul(h ^ (h >>> 15), 2246822519);
  return (h ^ (h >>> 13)) >>> 0;
}

function attend(layer, nSlots) {
  const [q, k, v] = [queries[layer], caches[layer].k, caches[layer].v].map(
    (data) => (data instanceof Float32Array ? data : data.array(Float32Array)));
  for (let h = 0; h < QH; ++h) {
    const out = new Float64Array(D);
    let sum = 0;
    for (let s = 0; s < nSlots; ++s) {
      const at = s * KV + Math.floor(h / (QH / KVH)) * D;
      let dot = 0;
      for (let i = 0; i < D; ++i) dot += q[h * D + i] * k[at + i];
      const weight = dot > 0 ? 1 + dot * dot : 1;
      for (let i = 0; i < D; ++i) out[i] += weight * v[at + i];
      sum += weight;
    }
    for (let i = 0; i < D; ++i) {
      const at = h * D + i;
      x[at] = ((x[at] + Math.floor(4 * (out[i] / sum) + 0.5) + 8) & 15) - 8;
    }
  }
}

// One token through all layers; returns the next one.
function step(token) {
  const position = sequence.logicalLength;
  for (let i = 0; i < X; ++i) x[i] = (hash((token * 1024 + position) * X + i) >>> 28) - 8;
  for (let l = 0; l < L; ++l) {
    const slot = sequence.storedLength(l);
    const [k, v] = [caches[l].k.array(Float32Array), caches[l].v.array(Float32Array)];
    for (let i = 0; i < X; ++i) queries[l][i] = x[(5 * i + 3 * l + 1) % X];
    for (let i = 0; i < KV; ++i) {
      k[slot * KV + i] = x[(7 * i + l) % X];
      v[slot * KV + i] = x[(3 * i + 2 * l + 5) % X];
    }
    const inputs = { queries: tokenMajor(queries[l], QH, D) };
    sequence.observe([{ layer: l, inputs }], 1, position);
    attend(l, slot + 1);
  }
  sequence.append(1);
  return x.reduce((sum, value, i) => sum + (value + 8) * (i + 1), 0) % 256;
}

// A token and drafts of those behind it. Drafts that the model does not say, and all after
// them, are taken back. Returns the next token.
function speculate(token) {
  const length = sequence.logicalLength;
  let [accepted, next, right] = [0, 0, true];
  for (let i = 0; i <= DRAFTS; ++i) {
    const said = step(token);
    // Stands for a draft model, which is wrong now and then.
    token = said ^ (1 >> hash(1000 + length + i) % 4);
    if (!right) continue;
    accepted += 1;
    next = said;
    right = token === said;
    for (const value of x) {
      checksum = BigInt.asUintN(64, (checksum ^ BigInt(value + 8)) * 1099511628211n);
    }
  }
  sequence.trimTo(length + accepted);
  return next;
}

let token = 0;
for (let i = 0; i < PROMPT; ++i) token = step(hash(i) % 256);
sequence.evict(views);
for (let i = 0; i < STEPS; ++i) {
  token = speculate(token);
  sequence.evict(views);
}
for (let l = 0; l < L; ++l) {
  for (let h = 0; h < KVH; ++h) {
    console.log(`layer ${l} head ${h} keeps ${sequence.keepPositions(l, h).join(" ")}`);
  }
}
console.log(`length ${sequence.logicalLength}, last token ${token}, ` +
            `checksum ${checksum.toString(16).padStart(16, "0")}`);
for (const handle of [sequence, plan, context]) handle.destroy();
