import type { Kvevict } from "@kvevict/web";

/** How the model rotates keys. The checkpoint functions do not tell it; the model's config.json does. */
export type Rope =
  | {
      theta: number;
      /** Elements of a head that are rotated. Default: all. */
      rotaryDim?: number;
      /** Factor of positions. Default 1. */
      scale?: number;
      /** Pairs are neighbours, not halves. Default false. */
      interleaved?: boolean;
    }
  | { /** Radians per position of each pair. */ invFreq: ArrayLike<number>; interleaved?: boolean };

export interface WebLLMEvictorOptions {
  /** In the text form. It scores by keys, values or positions, e.g. "knorm:budget=1024". */
  policy: string;
  /** null: the cache holds keys without positions. */
  rope: Rope | null;
  /** Needed if the engine has several models. */
  modelId?: string;
}

export interface WebLLMEviction {
  evicted: boolean;
  nTokensBefore: number;
  /** What the cache holds now; the next token has this position. */
  nTokens: number;
  /** Bytes of whole pages. */
  bytesBefore: number;
  bytes: number;
}

/** Experimental. For web-llm 0.2.86. */
export declare class WebLLMEvictor {
  /** `engine` is an MLCEngine of this thread. */
  constructor(kv: Kvevict, engine: unknown, options: WebLLMEvictorOptions);
  /** Evicts between two turns, under the engine's lock. */
  evict(): Promise<WebLLMEviction>;
  /** Call it after a resetChat() of the engine's. */
  reset(): void;
  destroy(): void;
}
