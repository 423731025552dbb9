// The configuration layer of web engines. What it decides, the core decides: load() comes
// before anything but a policy that evicts nothing.
let core = null;

export function setCore(kv) {
  core = kv;
}

function loaded() {
  if (core === null) throw new Error("the core is not loaded: await load() first");
  return core;
}

export const EvictionPolicyKind = Object.freeze({
  NONE: "none",
  STREAMING_LLM: "streaming-llm",
  SNAPKV: "snapkv",
  PYRAMIDKV: "pyramidkv",
  H2O: "h2o",
});

// The core's defaults; a test compares them.
export const DEFAULT_EVICTION_POLICY_KIND = EvictionPolicyKind.NONE;
export const DEFAULT_BUDGET = 1;
export const DEFAULT_SINK_TOKENS = 4;
export const DEFAULT_OBSERVATION_WINDOW = 32;
export const DEFAULT_POOLING_KERNEL_SIZE = 7;
export const DEFAULT_EVICTION_INTERVAL = 0;
export const DEFAULT_PYRAMID_ALPHA = 0.7;
// The observation window stays whatever this is. For streaming-llm 0 means the budget without
// the sinks.
export const DEFAULT_WINDOW_SIZE = 0;

const fields = {
  budget: (value) => ["budget", value],
  sinkTokens: (value) => ["sink", value],
  windowSize: (value) => ["recent", value],
  observationWindow: (value) => ["window", value],
  poolingKernelSize: (value) => ["pool", value === 0 || value === 1 ? "none" : `avg${value}`],
  evictionInterval: (value) => ["every", value],
  pyramidAlpha: (value) => ["alpha", value],
};

// Calls use() with the core's policy of a configuration. Fields that the kind has no
// parameter for are left out, so that one set of defaults serves every kind.
function withPolicy(config, use) {
  const kv = loaded();
  const policy = kv.policy(config.kind);
  try {
    for (const [field, toParameter] of Object.entries(fields)) {
      if (config[field] === undefined) continue;
      const [key, value] = toParameter(config[field]);
      if (!hasKey(kv, config.kind, key)) continue;
      policy.set(key, value);
    }
    return use(policy.validate());
  } finally {
    policy.destroy();
  }
}

const keysOfKinds = new Map();
function hasKey(kv, kind, key) {
  if (!keysOfKinds.has(kind)) {
    keysOfKinds.set(kind, new Set(kv.parameters(kind).map((row) => row.key)));
  }
  return keysOfKinds.get(kind).has(key);
}

export function isNoOpEviction(configOrPolicy) {
  const { kind } = configOrPolicy ?? {};
  return kind === undefined || kind === EvictionPolicyKind.NONE;
}

export class EvictionPolicy {
  constructor(config = {}) {
    for (const field of Object.keys(config)) {
      if (field !== "kind" && !(field in fields)) {
        throw new TypeError(`an eviction configuration has no field ${field}`);
      }
    }
    this.config = Object.freeze({ ...config, kind: config.kind ?? EvictionPolicyKind.NONE });
    this.kind = this.config.kind;
    this.isNoOp = isNoOpEviction(this.config);
    if (!this.isNoOp) this.text = withPolicy(this.config, (policy) => policy.toString());
    else this.text = this.kind;
    Object.freeze(this);
  }

  // What the configuration means in a context window of so many tokens.
  resolve(contextWindowSize) {
    if (this.isNoOp) {
      return {
        kind: this.kind, isNoOp: true, text: this.text, contextWindowSize,
        budgetTokens: contextWindowSize, sinkTokens: 0, recentTokens: 0,
        selectedTokens: contextWindowSize, queryRows: 0, evictionInterval: 0,
      };
    }
    return withPolicy(this.config, (policy) => {
      const tokens = policy.resolve(contextWindowSize);
      return {
        kind: this.kind, isNoOp: false, text: this.text, contextWindowSize,
        budgetTokens: tokens.budget,
        sinkTokens: tokens.nSink,
        recentTokens: tokens.nRecent, // the observation window included
        selectedTokens: tokens.nSelected,
        queryRows: tokens.nQueryRows,
        evictionInterval: policy.every,
      };
    });
  }

  layerBudgets(contextWindowSize, numLayers) {
    if (this.isNoOp) return new Array(numLayers).fill(contextWindowSize);
    return withPolicy(this.config, (policy) =>
      Array.from(policy.layerBudgets(contextWindowSize, numLayers)));
  }
}

// Throws the core's sentence if a value is out of bounds or values do not go together.
export function createEvictionPolicy(config) {
  return new EvictionPolicy(config);
}

// A ratio up to 1 or a count of tokens, as tokens of a context window.
export function resolveBudgetTokens(budget, contextWindowSize) {
  const config = { kind: "random", budget, sinkTokens: 0 };
  return withPolicy(config, (policy) => policy.resolve(contextWindowSize).budget);
}

// PyramidKV's budgets: layers share numLayers * budget by weights alpha^layer. Every layer
// keeps its sinks and its window, and at most the context window.
export function computePyramidLayerBudgets(budget, numLayers, {
  pyramidAlpha = DEFAULT_PYRAMID_ALPHA,
  sinkTokens = DEFAULT_SINK_TOKENS,
  observationWindow = DEFAULT_OBSERVATION_WINDOW,
  contextWindowSize = 2 ** 31 - 1,
} = {}) {
  return resolveLayerBudgets(
    { kind: EvictionPolicyKind.PYRAMIDKV, budget, pyramidAlpha, sinkTokens, observationWindow },
    contextWindowSize, numLayers);
}

// The budget of each layer, by whatever the configuration's kind says.
export function resolveLayerBudgets(config, contextWindowSize, numLayers) {
  const policy = config instanceof EvictionPolicy ? config : createEvictionPolicy(config);
  return policy.layerBudgets(contextWindowSize, numLayers);
}
