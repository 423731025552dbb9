import type { EvictionConfig } from "@kvevict/web";

/** Why a graph is not known. */
export declare class GraphError extends Error {}

/** How the rotary embedding turns keys: pair f by position * invFreq[f] radians. */
export interface Rope {
  invFreq: number[];
  /** Pair f is elements 2 f and 2 f + 1; without it f and f + invFreq.length. */
  interleaved?: boolean;
}

/** What an ONNX graph says of its attention. JSON can carry it. */
export interface GraphInfo {
  /** Where positions come from: the input position_ids, or the number of slots that are held. */
  positions: "input" | "length";
  /** Where they come from the length, if the table of rotations lies in the file. */
  rope?: Rope;
  /** Scale and soft cap of the logits; 0: 1 / sqrt(head size), and none. */
  layers: { layer: number; op: string; scale: number; softcap: number }[];
}

/** Reads a graph. Throws GraphError if it is not known. */
export declare function inspectGraph(onnx: Uint8Array): GraphInfo;

/**
 * The same graph with outputs "query.N", f32: the queries of the last `window` tokens of a run
 * (by default 32; 0: of all), as attention multiplies them with its keys. They are
 * [1, heads, rows, head size] or [1, rows, heads * head size].
 */
export declare function addQueryOutputs(onnx: Uint8Array, options?: { window?: number }): Uint8Array;

/** What one run of a session did to the cache. Bytes count keys and values of all layers. */
export interface Step {
  /** Tokens seen so far: the position of the next one. */
  seen: number;
  /** Slots that every head of every layer holds. */
  stored: number;
  bytesBefore: number;
  bytesAfter: number;
  /** "wasm", "webgpu", or "wasm, the cache is copied there and back: " and why. */
  by?: string;
  evicted: boolean;
  /** Why nothing was evicted. */
  reason?: string;
}

export interface Options extends EvictionConfig {
  /** In place of the other fields of EvictionConfig: the core's text, "snapkv:budget=1024,margin=64". */
  policy?: string;
  /** The bytes of the .onnx file. Needed by graphs without position_ids. */
  onnx?: Uint8Array;
  /** inspectGraph() of it, in place of its bytes. */
  graph?: GraphInfo;
  /** For graphs that rotate by length, if the file does not have the table. */
  rope?: Rope;
  /** Most slots that are held at once; 32,768 by default. */
  maxTokens?: number;
  /** onnxruntime's `env`, whose GPU device evicts; by default that of transformers.js. */
  env?: { webgpu: { device: unknown } };
  /** Is told of every run. */
  onStep?: (step: Step) => void;
}

/** The eviction of one session. */
export declare class Eviction {
  private constructor();
  /** The policy in the core's text form. */
  readonly policy: string;
  /** What the last run did. */
  readonly last?: Step;
  /** Tokens that a cache, an object with past_key_values.N.key, has seen. */
  seen(cache: object): number;
  /** A reason to leave the next runs alone; undefined ends that. */
  pause?: string;
  /** From here on the session, or the model, is as it was before. */
  remove(): void;
}

/**
 * Makes a session of onnxruntime-web evict. Its run() takes what it took before, position_ids and
 * an attention_mask of all tokens seen, and returns survivors as present.N.key and present.N.value,
 * on the CPU or as GPU buffers, as the session was asked for. Outputs query.N are taken away.
 * Whoever replaces past tensors on the GPU disposes them, as without eviction.
 */
export declare function evictSession(session: object, options: Options): Promise<Eviction>;

/**
 * Makes a model of transformers.js evict: generate(), forward() and pipelines with it. With `onnx`
 * and a policy that needs queries, which the model's graph does not give, the model gets another
 * session with these as outputs; `sessionOptions` are for it, such as externalData.
 */
export declare function withEviction(
  model: object, options: Options & { sessionOptions?: object }): Promise<Eviction>;
