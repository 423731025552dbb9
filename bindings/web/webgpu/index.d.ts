/**
 * Eviction from KV caches that live in GPU buffers of WebGPU.
 *
 * All work is encoded into the engine's own commands: nothing waits for the GPU or
 * reads back from it. No call changes a buffer until the engine submits what was
 * encoded. Wrong arguments throw RangeError or TypeError, whose message names the
 * parameter, its value and the bound; then no row of the cache is touched.
 *
 * Every buffer needs GPUBufferUsage.STORAGE. Offsets and strides are in bytes and
 * multiples of 4; multiples of 16 are faster. The kernels need no optional feature
 * and at most 8 storage buffers; they use "subgroups" if the device was made with
 * it, with the same results.
 */

export type Dtype = 'f32' | 'f16';
export type Reduction = 'mean' | 'max' | 'sum';

/** Where the rows of K or V lie: byte offset + head * headStrideBytes + slot * tokenStrideBytes. */
export interface Plane {
  buffer: GPUBuffer;
  /** Default 0. */
  offset?: number;
  /** 'opaque' rows are moved but not read. Default: the shape's, else 'f32'. */
  dtype?: Dtype | 'opaque';
  /** Elements of a row: up to 1024, and with f16 even. Default: the shape's. */
  headDim?: number;
  /** Bytes of an opaque row. */
  rowBytes?: number;
  /** Default, for both strides: packed rows [tokens, heads, headDim]. */
  tokenStrideBytes?: number;
  headStrideBytes?: number;
  /** Paged: from one block to the next. Default: packed, likewise. */
  blockStrideBytes?: number;
}

/** u32 block ids, in token order. Slot s lies in block ids[s / blockSize]. */
export interface BlockTable {
  buffer: GPUBuffer;
  offset?: number;
  /** Elements from one head's table to the next's. 0, the default: heads share one. */
  headStride?: number;
}

/** Where one layer's cache lies. K and V may share a buffer and differ in layout. */
export interface View {
  nKvHeads?: number;
  k: Plane;
  v: Plane;
  /** Other planes with a row per token and head that move along, such as positions. */
  companions?: Plane[];
  /** Paged caches. Blocks must be different ones; the GPU does not check that. */
  blockTable?: BlockTable;
  blockSize?: number;
}

/** Rows of f32 or u32, `stride` elements apart. */
export interface Rows {
  buffer: GPUBuffer;
  offset?: number;
  /** Default: packed. */
  stride?: number;
}

/** Keep lists of u32 slots, ascending. */
export interface KeepLists extends Rows {
  /** 1 for all heads, or one per KV head (the default). */
  nLists?: number;
  /** Slots of each list; not read. */
  count?: number;
}

export interface Shape {
  /** Default: nKvHeads. Query head h reads KV head h / (nQHeads / nKvHeads). */
  nQHeads?: number;
  nKvHeads: number;
  kHeadDim: number;
  /** Default: kHeadDim. */
  vHeadDim?: number;
  /** The dtype of K and V. Default f32. */
  dtype?: Dtype;
  /** Most slots that a layer will hold: scores have room for so many. */
  maxTokens: number;
  /** Default and 0: 1 / sqrt(kHeadDim). */
  softmaxScale?: number;
  /** c: logits x become c tanh(x / c). Default 0: no cap. */
  logitSoftcap?: number;
}

/** What always stays, and how scores become an order. */
interface Ranking {
  /** Tokens that stay, everything included. */
  budget: number;
  /** First tokens, which always stay. Default 4; tova and h2o 0. */
  sink?: number;
  /** Last tokens, which always stay. Default 0; h2o 32. */
  recent?: number;
  /** 'none', 'avgN' or 'maxN', N odd. Default 'none'; snapkv and pyramidkv 'avg7'. */
  pool?: string;
  /** The divisor of average pooling at an edge. Default 'pad': the full width. */
  edge?: 'pad' | 'shrink';
  /** What shares a keep list. Default 'head'; tova 'layer'. */
  scope?: 'head' | 'layer';
  /** How heads that share a list are reduced. Default 'mean'. */
  over?: Reduction;
  /** Which of equal scores stays. Default 'lower'. */
  tie?: 'lower' | 'higher';
  /** Turn keys that move to their new slots by RoPE. Default false. */
  rotate?: boolean;
}

export interface WindowPolicy extends Ranking {
  /** pyramidkv is snapkv with a budget for each layer: give it to encode(). */
  kind: 'snapkv' | 'pyramidkv' | 'tova';
  /** Last queries whose attention scores tokens. Default 32; tova 1. */
  window?: number;
  /** Whether the window's tokens always stay. Default true. */
  keepWindow?: boolean;
  /** Over the window's rows. Default 'mean'. */
  rows?: Reduction;
  /** Over the query heads of a KV head. Default 'mean'. */
  group?: Reduction;
  /** Default 'reduce-pool': heads are reduced before scores are pooled. */
  order?: 'reduce-pool' | 'pool-reduce';
}

export interface KeyPolicy extends Ranking {
  /** custom ranks by the caller's scores. */
  kind: 'knorm' | 'keydiff' | 'custom';
}

export interface SumsPolicy extends Ranking {
  /** Ranks by the attention that all queries paid; with `scores` by sums that the engine has. */
  kind: 'h2o';
  /** Over the query heads of a KV head. Default 'mean'. */
  group?: Reduction;
  order?: 'reduce-pool' | 'pool-reduce';
}

export interface LagPolicy extends Ranking {
  kind: 'lagkv';
  /** Tokens of a partition, 2 to 1024. Default 128. */
  block?: number;
  /** Whether a token scores by its rank in its partition. Default true. */
  ranks?: boolean;
}

export interface StreamingPolicy {
  kind: 'streaming-llm';
  budget: number;
  sink?: number;
  rotate?: boolean;
}

/** The parameters and defaults of docs/policies.md. */
export type Policy =
  | WindowPolicy
  | SumsPolicy
  | KeyPolicy
  | LagPolicy
  | StreamingPolicy
  | { kind: 'none' };

/** How RoPE rotated the keys: pair f at position p by p * invFreq[f] radians. */
export interface Rope {
  /** Up to 256 pairs; read as f32. */
  invFreq: ArrayLike<number>;
  /** 'half' (default): pair f is elements f and f + invFreq.length; 'interleaved': 2 f and 2 f + 1. */
  layout?: 'half' | 'interleaved';
}

export interface EvictorOptions {
  shape: Shape;
  policy: Policy;
  /** Needed by rotate. */
  rope?: Rope;
  /** Default: whether the device has the feature. */
  subgroups?: boolean;
}

export interface EvictOptions {
  view: View;
  /** Slots held, at most maxTokens. */
  nTokens: number;
  /** In place of the policy's, for this layer. */
  budget?: number;
  /** snapkv, pyramidkv, tova, h2o: rows [nQHeads, firstQuery + window] after RoPE; the last are the window's. */
  queries?: Plane;
  /** Row of the window's first query. Default 0. */
  firstQuery?: number;
  /** h2o: the last queries that are given, 1 to nTokens. Default nTokens. */
  nQueryRows?: number;
  /** custom, and h2o in place of queries: f32 [nKvHeads, nTokens]. */
  scores?: Rows;
  /** Receives the keep lists. Default: memory of the evictor's, which the next encode() overwrites. */
  keep?: Rows;
}

export type Eviction =
  | { evicted: false; nTokens: number; reason: string }
  | {
      evicted: true;
      /** Slots held afterwards. The next token goes there; its position is the number of tokens seen,
       *  or with rotate this one. */
      nTokens: number;
      keep: Required<KeepLists>;
    };

export declare class Evictor {
  constructor(device: GPUDevice, options: EvictorOptions);
  readonly nLists: number;
  readonly subgroups: boolean;
  /** Compiles the kernels of encode() with such arguments, without blocking. */
  prepare(options: EvictOptions): Promise<void>;
  /** Encodes the eviction of one layer into the encoder, or into a compute pass of the engine's. */
  encode(encoder: GPUCommandEncoder | GPUComputePassEncoder, options: EvictOptions): Eviction;
  /** Frees the evictor's memory, once the GPU has done the work that uses it. */
  destroy(): void;
}

export declare function createEvictor(device: GPUDevice, options: EvictorOptions): Evictor;

type Encoder = GPUCommandEncoder | GPUComputePassEncoder;

/** The steps of an eviction, one by one. Scores are f32; higher keeps. */
export declare class Operations {
  constructor(device: GPUDevice, options?: { subgroups?: boolean });
  readonly subgroups: boolean;
  prepare(encode: (pass: GPUComputePassEncoder) => void): Promise<void>;
  /** The exact causal softmax of the window, reduced over its rows and unless perQueryHead over groups.
   *  Writes [nKvHeads or nQHeads, nScored]. */
  encodeWindowScores(
    encoder: Encoder,
    options: {
      view: View;
      nTokens: number;
      scores: Rows;
      queries: Plane;
      nQHeads: number;
      firstQuery?: number;
      window: number;
      scale?: number;
      softcap?: number;
      rows?: Reduction;
      group?: Reduction;
      perQueryHead?: boolean;
      nScored?: number;
    },
  ): void;
  encodeKeyNorms(encoder: Encoder, options: { view: View; nTokens: number; scores: Rows }): void;
  encodeKeyDiffs(encoder: Encoder, options: { view: View; nTokens: number; scores: Rows }): void;
  encodeLagScores(
    encoder: Encoder,
    options: {
      view: View;
      nTokens: number;
      scores: Rows;
      sink?: number;
      block?: number;
      ranks?: boolean;
    },
  ): void;
  /** Pools nRows * nTerms rows and reduces every nTerms of them to one. Scores from nScored on become +infinity. */
  encodeShape(
    encoder: Encoder,
    options: {
      from: Rows;
      to: Rows;
      nRows: number;
      nTerms?: number;
      nTokens: number;
      nScored?: number;
      pool?: string;
      edge?: 'pad' | 'shrink';
      reduce?: Reduction;
    },
  ): void;
  /** Descending score, ties by `tie`, NaN last; sinks and recents always stay. */
  encodeSelect(
    encoder: Encoder,
    options: {
      scores: Rows;
      keep: Rows;
      nLists: number;
      nTokens: number;
      nKeep: number;
      sink?: number;
      recent?: number;
      tie?: 'lower' | 'higher';
    },
  ): void;
  /** Row keep[i] of each head and plane goes to slot i, in place. Slots from nKeep on are unspecified. */
  encodeCompact(
    encoder: Encoder,
    options: { view: View; nTokens: number; nKeep: number; keep: KeepLists },
  ): void;
  /** Row keep[i] goes to slot firstSlot + i of another cache, whose planes lie in other buffers. */
  encodeGather(
    encoder: Encoder,
    options: {
      view: View;
      nTokens: number;
      nKeep: number;
      keep: KeepLists;
      destination: View;
      firstSlot?: number;
    },
  ): void;
  /** Turns the keys of slots 0 .. nRows - 1: with `keep` from slot keep[i] to i, with `offsets` (i32) by so many. */
  encodeRotate(
    encoder: Encoder,
    options: {
      view: View;
      nRows: number;
      rope: Rope;
      nLists?: number;
      keep?: Rows;
      offsets?: Rows;
    },
  ): void;
  destroy(): void;
}
