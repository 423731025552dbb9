// The module against the native library: a native program prints what it does, and both
// modules do the same here.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";

const { load, tokenMajor, DType, smallModule, fullModule } = await import(process.env.KVEVICT_WEB);
const [L, QH, KVH, D, MAX, FIRST, SECOND] = [3, 4, 2, 24, 256, 130, 50];
const records = execFileSync(process.env.KVEVICT_RECORD, { encoding: "utf8" })
  .trim().split("\n").map((line) => JSON.parse(line));

// A model whose cache lies in the module's memory, or in arrays of the engine's own.
class Model {
  constructor(kv, policyText, isInModule) {
    const memory = (n) => (isInModule ? kv.allocate(4 * n) : new Float32Array(n));
    this.policy = kv.policy(policyText);
    this.plan = kv.context().plan(
      { nLayers: L, maxTokens: MAX,
        layers: { nQHeads: QH, nKvHeads: KVH, kHeadDim: D, vHeadDim: D } }, this.policy);
    this.sequence = this.plan.sequence().beginObserving();
    this.layers = Array.from({ length: L }, () => ({
      k: memory(MAX * KVH * D), v: memory(MAX * KVH * D), q: new Float32Array(MAX * QH * D),
    }));
    this.state = 7;
  }

  next() {
    this.state = (Math.imul(this.state, 1664525) + 1013904223) >>> 0;
    return Math.fround((this.state >>> 8) / 4194304) - 2;
  }

  plane(data, nHeads) {
    return tokenMajor(data, nHeads, D, DType.F32);
  }

  get views() {
    return this.layers.map(({ k, v }) => ({
      nKvHeads: KVH, k: this.plane(k, KVH), v: this.plane(v, KVH),
    }));
  }

  fill(data, from, n) {
    const rows = data instanceof Float32Array ? data : data.array(Float32Array);
    for (let i = 0; i < n; ++i) rows[from + i] = this.next();
  }

  step(first, n) {
    this.layers.forEach(({ k, v, q }, layer) => {
      const slot = this.sequence.storedLength(layer);
      this.fill(k, slot * KVH * D, n * KVH * D);
      this.fill(v, slot * KVH * D, n * KVH * D);
      this.fill(q, first * QH * D, n * QH * D);
      const queries = this.plane(q.subarray(first * QH * D), QH);
      this.sequence.observe([{ layer, inputs: { queries } }], n, first);
    });
    this.sequence.append(n);
  }

  scores(nQueryRows) {
    const scores = new Float32Array(KVH * FIRST);
    const queries = this.plane(this.layers[1].q.subarray((FIRST - nQueryRows) * QH * D), QH);
    this.plan.score({
      layer: 1, nTokens: FIRST, view: this.views[1], scores,
      inputs: nQueryRows === 0 ? null : { queries, nQueryRows },
    });
    return scores;
  }

  positions() {
    return this.layers.flatMap((_, layer) =>
      Array.from({ length: KVH }, (_, head) =>
        Array.from(this.sequence.keepPositions(layer, head))));
  }
}

for (const [name, source] of [["small", smallModule], ["full", fullModule]]) {
  const kv = await load(source);
  for (const record of records) {
    for (const isInModule of [true, false]) {
      const where = isInModule ? "in the module" : "of its own";
      test(`${record.policy}, the ${name} module, a cache ${where}`, () => {
        const model = new Model(kv, record.policy, isInModule);
        const { budget, nSink, nRecent, nSelected, nQueryRows } = model.policy.resolve(FIRST);
        assert.deepEqual([budget, nSink, nRecent, nSelected, nQueryRows], record.resolved);
        if (record.budgets !== undefined) {
          assert.deepEqual(Array.from(model.policy.layerBudgets(FIRST, L)), record.budgets);
        }
        model.step(0, FIRST);
        if (record.scores !== undefined) {
          model.scores(nQueryRows).forEach((score, i) => {
            const native = record.scores[i];
            if (native === 1e300) return assert.equal(score, Infinity); // it must stay
            // Sums of up to FIRST products, without fused multiply-add. Those of a cosine,
            // which keydiff's scores are, cancel.
            const magnitude = record.policy.startsWith("keydiff") ? 1 : Math.abs(native);
            const bound = FIRST * 2 ** -23 * Math.max(1e-3, magnitude);
            assert.ok(Math.abs(score - native) <= bound, `score ${i}: ${score}, not ${native}`);
          });
        }
        model.sequence.evict(model.views);
        assert.deepEqual(model.positions(), record.first);
        model.step(FIRST, SECOND);
        model.sequence.evict(model.views);
        assert.deepEqual(model.positions(), record.second);
        if (isInModule) model.layers.forEach(({ k, v }) => [k, v].forEach((m) => m.free()));
        for (const handle of [model.sequence, model.plan, model.policy]) handle.destroy();
      });
    }
  }
}
