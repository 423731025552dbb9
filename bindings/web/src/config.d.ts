export type EvictionPolicyKind = (typeof EvictionPolicyKind)[keyof typeof EvictionPolicyKind];
export declare const EvictionPolicyKind: {
  readonly NONE: "none";
  readonly STREAMING_LLM: "streaming-llm";
  readonly SNAPKV: "snapkv";
  readonly PYRAMIDKV: "pyramidkv";
  readonly H2O: "h2o";
};

/** Fields that a kind has no parameter for are left out. */
export interface EvictionConfig {
  /** One of the kinds, or the name of any policy or preset of the core; by default none. */
  kind?: EvictionPolicyKind | (string & {});
  /** Tokens that a KV head of a layer keeps: up to 1 a share of the context, above 1 a count. */
  budget?: number;
  /** First tokens, which always stay. */
  sinkTokens?: number;
  /** Last tokens, which always stay; the observation window does so, too. */
  windowSize?: number;
  /** Last queries, whose attention scores the tokens. */
  observationWindow?: number;
  /** Scores are averaged over so many tokens, an odd number; 0 or 1: they are not. */
  poolingKernelSize?: number;
  /** Tokens between evictions while decoding; 0 or 1: every call evicts. */
  evictionInterval?: number;
  /** pyramidkv: the ratio of a layer's budget to that of the layer before. */
  pyramidAlpha?: number;
}

export interface ResolvedEviction {
  kind: string;
  isNoOp: boolean;
  /** The policy in the core's text form. */
  text: string;
  contextWindowSize: number;
  budgetTokens: number;
  sinkTokens: number;
  /** The observation window included. */
  recentTokens: number;
  /** Chosen by score. */
  selectedTokens: number;
  /** Query rows that an eviction needs; 0xffffffff: any number, 0xfffffffe: all. */
  queryRows: number;
  evictionInterval: number;
}

export declare class EvictionPolicy {
  constructor(config?: EvictionConfig);
  readonly config: Readonly<EvictionConfig>;
  readonly kind: string;
  /** True if the engine is to be left untouched. */
  readonly isNoOp: boolean;
  /** The policy in the core's text form. */
  readonly text: string;
  resolve(contextWindowSize: number): ResolvedEviction;
  layerBudgets(contextWindowSize: number, numLayers: number): number[];
}

/**
 * Throws the core's sentence if a value is out of bounds or values do not go together. Needs
 * load() before, unless the policy evicts nothing.
 */
export declare function createEvictionPolicy(config?: EvictionConfig): EvictionPolicy;
export declare function isNoOpEviction(config?: EvictionConfig | EvictionPolicy): boolean;
/** A ratio up to 1 or a count of tokens, as tokens of a context window. */
export declare function resolveBudgetTokens(budget: number, contextWindowSize: number): number;
/** PyramidKV's budgets, whose sum is numLayers * budget unless the window caps them all. */
export declare function computePyramidLayerBudgets(budget: number, numLayers: number, options?: {
  pyramidAlpha?: number;
  sinkTokens?: number;
  observationWindow?: number;
  contextWindowSize?: number;
}): number[];
/** The budget of each layer, by whatever the configuration's kind says. */
export declare function resolveLayerBudgets(config: EvictionConfig | EvictionPolicy,
                                            contextWindowSize: number,
                                            numLayers: number): number[];

export declare const DEFAULT_EVICTION_POLICY_KIND: "none";
export declare const DEFAULT_BUDGET: number;
export declare const DEFAULT_SINK_TOKENS: number;
export declare const DEFAULT_WINDOW_SIZE: number;
export declare const DEFAULT_OBSERVATION_WINDOW: number;
export declare const DEFAULT_POOLING_KERNEL_SIZE: number;
export declare const DEFAULT_EVICTION_INTERVAL: number;
export declare const DEFAULT_PYRAMID_ALPHA: number;
