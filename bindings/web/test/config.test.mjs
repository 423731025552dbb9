// The configuration layer decides what the core decides.
import assert from "node:assert/strict";
import { test } from "node:test";

const web = await import(process.env.KVEVICT_WEB);
const {
  createEvictionPolicy, isNoOpEviction, resolveBudgetTokens, computePyramidLayerBudgets,
  resolveLayerBudgets, EvictionPolicy, EvictionPolicyKind, KvevictError,
} = web;

test("a policy that evicts nothing needs no core", () => {
  const untouched = createEvictionPolicy();
  assert.ok(untouched instanceof EvictionPolicy);
  assert.ok(untouched.isNoOp && isNoOpEviction(untouched));
  assert.ok(isNoOpEviction() && isNoOpEviction({ kind: "none" }));
  assert.ok(!isNoOpEviction({ kind: "snapkv" }));
  const resolved = untouched.resolve(4096);
  assert.equal(resolved.budgetTokens, 4096);
  assert.equal(resolved.isNoOp, true);
  assert.deepEqual(resolveLayerBudgets({}, 4096, 3), [4096, 4096, 4096]);
});

test("anything else says what is missing", () => {
  assert.throws(() => createEvictionPolicy({ kind: "snapkv" }), /await load\(\) first/);
});

test("once the core is loaded", async (t) => {
  const kv = await web.load();

  await t.test("defaults are the core's", () => {
    const defaults = (policy) =>
      new Map(kv.parameters(policy).map((row) => [row.key, row.defaultText]));
    const snap = defaults("snapkv");
    assert.equal(snap.get("budget"), String(web.DEFAULT_BUDGET));
    assert.equal(snap.get("sink"), String(web.DEFAULT_SINK_TOKENS));
    assert.equal(snap.get("recent"), String(web.DEFAULT_WINDOW_SIZE));
    assert.equal(snap.get("window"), String(web.DEFAULT_OBSERVATION_WINDOW));
    assert.equal(snap.get("pool"), `avg${web.DEFAULT_POOLING_KERNEL_SIZE}`);
    assert.equal(snap.get("every"), String(web.DEFAULT_EVICTION_INTERVAL));
    assert.equal(snap.get("alpha"), String(web.DEFAULT_PYRAMID_ALPHA));
    assert.deepEqual([web.DEFAULT_SINK_TOKENS, web.DEFAULT_OBSERVATION_WINDOW,
                      web.DEFAULT_POOLING_KERNEL_SIZE], [4, 32, 7]);
  });

  await t.test("every field is a parameter", () => {
    const policy = createEvictionPolicy({
      kind: EvictionPolicyKind.PYRAMIDKV, budget: 512, sinkTokens: 2, windowSize: 24,
      observationWindow: 16, poolingKernelSize: 5, evictionInterval: 64, pyramidAlpha: 0.5,
    });
    assert.equal(policy.text, String(kv.policy(
      "pyramidkv:budget=512,sink=2,recent=24,window=16,pool=avg5,every=64,alpha=0.5")));
    assert.deepEqual(policy.resolve(4096), {
      kind: "pyramidkv", isNoOp: false, text: policy.text, contextWindowSize: 4096,
      budgetTokens: 512, sinkTokens: 2, recentTokens: 24, selectedTokens: 486, queryRows: 16,
      evictionInterval: 64,
    });
    assert.equal(createEvictionPolicy({ kind: "snapkv", poolingKernelSize: 1 }).text,
                 "snapkv:pool=none");
  });

  await t.test("fields that a kind has no use for are left out", () => {
    const policy = createEvictionPolicy({
      kind: "streaming-llm", sinkTokens: 4, windowSize: 60, observationWindow: 32,
      poolingKernelSize: 7,
    });
    assert.equal(policy.resolve(4096).budgetTokens, 64);
  });

  await t.test("every kind evicts, H2O too", () => {
    for (const kind of Object.values(EvictionPolicyKind)) {
      if (kind === "none") continue;
      const { budgetTokens, isNoOp } = createEvictionPolicy({ kind, budget: 0.25 }).resolve(4096);
      assert.deepEqual([kind, budgetTokens, isNoOp], [kind, 1024, false]);
    }
  });

  await t.test("presets are kinds, too", () => {
    const policy = createEvictionPolicy({ kind: "snapkv-original", budget: 256 });
    assert.equal(policy.resolve(4096).budgetTokens, 256);
  });

  await t.test("budgets are the core's", () => {
    assert.equal(resolveBudgetTokens(0.29, 100), 28);
    assert.equal(resolveBudgetTokens(1024, 4096), 1024);
    assert.equal(resolveBudgetTokens(8192, 4096), 4096);
    const pyramid = computePyramidLayerBudgets(256, 8);
    assert.equal(pyramid.reduce((a, b) => a + b), 8 * 256);
    assert.ok(pyramid.every((budget, i) => i === 0 || budget <= pyramid[i - 1]));
    assert.deepEqual(pyramid, Array.from(
      kv.policy("pyramidkv:budget=256").layerBudgets(2 ** 31 - 1, 8)));
    assert.deepEqual(resolveLayerBudgets({ kind: "snapkv", budget: 256 }, 4096, 3),
                     [256, 256, 256]);
    const inWindow = computePyramidLayerBudgets(256, 4, { contextWindowSize: 300 });
    assert.ok(Math.max(...inWindow) <= 300);
  });

  await t.test("errors are the core's sentences", () => {
    const refused = (config, sentence) =>
      assert.throws(() => createEvictionPolicy(config), (error) =>
        error instanceof KvevictError && sentence.test(error.message));
    refused({ kind: "snapkv", budget: -1 }, /^budget="-1" is not a finite number > 0$/);
    refused({ kind: "snapkv", budget: NaN }, /^budget="nan" is not a finite number > 0$/);
    refused({ kind: "snapkv", poolingKernelSize: 4 }, /^pool="avg4" is not none, avgN or maxN/);
    refused({ kind: "pyramidkv", pyramidAlpha: 2 }, /^alpha="2" is not a number in \(0, 1\]$/);
    refused({ kind: "snapkv", sinkTokens: 1.5 }, /^sink="1\.5" is not a count/);
    refused({ kind: "snapkw" }, /snapkw/);
    assert.throws(() => createEvictionPolicy({ kind: "snapkv", budgets: 4 }), /no field budgets/);
  });
});
