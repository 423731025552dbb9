// node score.mjs: how long the module takes to score and to evict a layer's cache, in the
// module's memory and copied from an array of the engine's own; the least of many runs.
// KVEVICT_WEB names another dist/kvevict.js than the package's.
const { load, tokenMajor, DType } = await import(process.env.KVEVICT_WEB ?? "@kvevict/web");

const [TOKENS, QH, KVH, D, WINDOW, RUNS] = [2048, 8, 8, 64, 32, 200];
const kv = await load();
const context = kv.context();
const policy = kv.policy("snapkv:budget=512", { window: WINDOW });
const layers = { nQHeads: QH, nKvHeads: KVH, kHeadDim: D, vHeadDim: D };
const plan = context.plan({ nLayers: 1, maxTokens: TOKENS, layers }, policy);
const random = (n) => Float32Array.from({ length: n }, () => Math.random() * 2 - 1);
const rows = random(TOKENS * KVH * D);
const queries = tokenMajor(random(WINDOW * QH * D), QH, D);

function least(use, prepare = () => undefined) {
  let best = Infinity;
  for (let i = 0; i < RUNS; ++i) {
    const given = prepare();
    const begin = performance.now();
    use(given);
    best = Math.min(best, performance.now() - begin);
  }
  return best.toFixed(2);
}

function cacheOf(isInModule) {
  const make = () => {
    if (!isInModule) return rows.slice();
    const memory = kv.allocate(4 * rows.length);
    memory.array(Float32Array).set(rows);
    return memory;
  };
  const [k, v] = [make(), make()];
  return { nKvHeads: KVH, k: tokenMajor(k, KVH, D, DType.F32), v: tokenMajor(v, KVH, D, DType.F32) };
}

console.log(`${TOKENS} tokens, ${KVH} heads, head_dim ${D}, f32, window ${WINDOW}; ` +
            `${kv.simdTargets()[0]}, Node ${process.version}`);
for (const isInModule of [true, false]) {
  const view = cacheOf(isInModule);
  const scores = kv.allocate(4 * KVH * TOKENS);
  const score = least(() => plan.score({
    layer: 0, nTokens: TOKENS, view, scores, scoresLen: KVH * TOKENS,
    inputs: { queries, nQueryRows: WINDOW },
  }));
  const evict = least((sequence) => {
    sequence.evict([view], { inputs: [{ queries, nQueryRows: WINDOW }] });
    sequence.destroy();
  }, () => {
    const sequence = plan.sequence();
    sequence.append(TOKENS);
    return sequence;
  });
  console.log(`${isInModule ? "in the module's memory" : "copied there and back"}: ` +
              `score ${score} ms, evict to 512 tokens ${evict} ms`);
}
