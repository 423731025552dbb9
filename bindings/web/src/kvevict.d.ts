import type * as s from "./structs.js";
import type { DType, Input, Need, Operation, Reason, Status } from "./enums.js";
import type { PolicyParameters } from "./parameters.js";

export * from "./enums.js";
export * from "./config.js";
export type * from "./structs.js";
export type { PolicyParameters } from "./parameters.js";
/** The constants of the headers, without KVEVICT_. */
export declare const constants: Readonly<Record<string, number>>;

type TypedArray =
  | Int8Array | Uint8Array | Int16Array | Uint16Array | Int32Array | Uint32Array
  | Float32Array | Float64Array | BigInt64Array | BigUint64Array;
type ArrayType<T> = {
  new (buffer: ArrayBufferLike, byteOffset?: number, length?: number): T;
  readonly BYTES_PER_ELEMENT: number;
};

/**
 * Where data lies: memory of the module, which calls use in place; an array, which is copied
 * there and back, unless it is one on that memory; an address in it. Arrays that a call
 * writes must not overlap. A field that names an object, such as `sequence`, takes that object.
 */
export type Data = Memory | Handle | TypedArray | number | bigint | null;

/** A region of the module's memory. */
export declare class Memory {
  private constructor();
  readonly address: number;
  readonly byteLength: number;
  /** An array on it; it ends when the memory grows, so make it anew after each call. */
  array<T>(type: ArrayType<T>, byteOffset?: number, length?: number): T;
  /** The memory from a byte on; not to be freed. */
  at(byteOffset: number): Memory;
  /** May be called twice. */
  free(): void;
}

/** A call failed: `message` is the core's sentence. */
export declare class KvevictError extends Error {
  constructor(message: string, status: Status);
  readonly status: Status;
  /** The name of the status, e.g. "INVALID_ARGUMENT". */
  readonly statusName: string;
}

declare class Handle {
  /** Frees what the object holds. It may be called twice, and in any order. */
  destroy(): void;
}

/** What a struct that a call fills has. */
type Filled<T> = Required<T>;
type View = Omit<s.View, "k" | "v"> & { k?: s.Plane; v?: s.Plane };

export interface Policy extends PolicyParameters {}
/** What survives. A policy only has the parameters of its kind. */
export declare class Policy extends Handle {
  private constructor();
  /** By a parameter's key in the text form. */
  get(key: string): string;
  set(key: string, value: string | number | boolean): this;
  /** Throws if parameters do not go together. */
  validate(): this;
  /** The numbers of tokens in a context of so many. */
  resolve(nContext: number): Filled<s.ResolvedPolicy>;
  layerBudgets(nContext: number, nLayers: number): Uint32Array;
  need(input: Input): Need;
  readonly needsQueries: boolean;
  /** The text form, from which the same policy can be made. */
  toString(): string;
}

export declare class Context extends Handle {
  private constructor();
  plan(geometry: s.Geometry, policy: Policy, options?: s.PlanOptions): Plan;
  /** The slots that stay, `count` of each list. */
  select(options: s.SelectOptions, count: number, nLists?: number): Int32Array[];
  /** The least budget of each layer that keeps a share of the mass of its scores. */
  budgetsForMass(layers: s.LayerScores[], options: s.MassOptions): Uint32Array;
  /** Moves the rows that stay. */
  compact(moves: s.Move | s.Move[]): void;
  /** Permutes rows. */
  reorder(moves: s.Move | s.Move[]): void;
  /** Attention over a cache as it lies; only the full module has it. */
  attend(jobs: s.AttentionJob | s.AttentionJob[]): void;
}

/** Geometry and policy, checked once. */
export declare class Plan extends Handle {
  private constructor();
  readonly nLayers: number;
  sequence(): Sequence;
  /** A cache of blocks, by the plan's geometry and maxTokens. */
  pagedCache(options: s.PagedCacheOptions): PagedCache;
  /** Bytes of such a cache. */
  pagedCacheBytes(options: s.PagedCacheOptions): number;
  layer(layer: number): Filled<s.LayerInfo>;
  capabilities(layer: number): Filled<s.Capabilities>;
  workspace(operation?: Operation, nTokens?: number): Filled<s.Workspace>;
  /** What each layer keeps of so many tokens. */
  layerBudgets(nTokens: number): Uint32Array;
  /** Writes the scores of jobs. */
  score(jobs: s.ScoreJob | s.ScoreJob[]): void;
  /** Turns keys to other positions. */
  rotate(rotations: s.Rotation | s.Rotation[]): void;
  /** What Context.select() is to be asked for a layer. */
  selection(layer: number, nTokens: number, nSeen?: number): {
    options: s.SelectOptions;
    nLists: number;
    count: number;
  };
}

/** What one request carries from eviction to eviction. */
export declare class Sequence extends Handle {
  private constructor();
  readonly plan: Plan;
  /** From here on queries that observe() shows are kept. */
  beginObserving(): this;
  endObserving(): void;
  /** Shows queries, attention sums or scores of nRows tokens, of layers in ascending order. */
  observe(observations: s.Observation[], nRows: number, firstPosition?: number): void;
  /** The engine has stored so many more rows in every layer. */
  append(nTokens: number): void;
  endPrompt(): void;
  /** Takes back the last tokens, down to a logical length. */
  trimTo(length: number): void;
  reset(): void;
  /** Scores, selects and compacts the cache in place: a view for each layer. */
  evict(views: View[], options?: s.EvictOptions): Filled<s.EvictReport>;
  /** What the last eviction did. */
  report(): Filled<s.EvictReport>;
  /** How many slots of each layer the next eviction leaves. */
  keptSlots(views: View[]): Uint32Array;
  undoBytes(views: View[]): number;
  undo(views: View[], undo: Memory): void;
  /** Begins with rows that are there already. */
  start(layers: s.PositionLists[], nTokens: number): void;
  /** The slot of the next row. */
  storedLength(layer?: number, kvHead?: number): number;
  /** The position of the next token. */
  readonly logicalLength: number;
  /** The length up to which nothing has been evicted. */
  readonly exactPrefix: number;
  positionOfSlot(layer: number, kvHead: number, slot: number): number;
  slotOfPosition(layer: number, kvHead: number, position: number): number;
  /** The positions of all slots, ascending. */
  keepPositions(layer?: number, kvHead?: number): Int32Array;
  fork(options?: s.ForkOptions): Sequence;
  /** The state as bytes, for load(). */
  save(): Uint8Array;
  load(bytes: Uint8Array): void;
}

/** A pool of blocks in the module's memory, for engines without one. */
export declare class PagedCache extends Handle {
  private constructor();
  /** An empty sequence. */
  sequence(): PagedSequence;
  usage(): Filled<s.PagedCacheUsage>;
  /** Evicts several; all are checked before the first one changes. */
  evict(items: PagedEviction[]): Filled<s.EvictReport>[];
}

export interface PagedEviction {
  cached: PagedSequence;
  /** Knows the positions of its rows. */
  sequence: Sequence;
  options?: s.EvictOptions;
}

/** The rows of one request, in blocks. */
export declare class PagedSequence extends Handle {
  private constructor();
  readonly cache: PagedCache;
  /** Another sequence that holds the same tokens in the same blocks. */
  fork(): PagedSequence;
  /** Makes room for so many tokens in every layer. */
  append(nTokens: number): void;
  /** Drops the last tokens of layers that hold more. */
  truncate(newLength: number): void;
  /** Drops the last rows that a sequence no longer has, e.g. after its trimTo(). */
  fit(sequence: Sequence): void;
  /** The rows that a layer holds. */
  length(layer?: number): number;
  /** A layer's rows where they lie; it holds until a call changes the sequence. */
  view(layer?: number): Filled<s.View>;
  /** Copies the blocks that others share, so that they may be written through views. */
  own(firstSlot?: number): void;
  /** Copies rows into slots that layers hold. */
  write(rows: s.PagedRows | s.PagedRows[]): void;
  /** Copies rows out of the cache, to the planes of `rows`. */
  read(rows: s.PagedRows | s.PagedRows[]): void;
  /** Evicts this sequence, whose positions `sequence` knows, and frees blocks. */
  evict(sequence: Sequence, options?: s.EvictOptions): Filled<s.EvictReport>;
}

/** One loaded module. */
export declare class Kvevict {
  private constructor();
  readonly version: string;
  /** Bytes of the module's memory, which grows and never shrinks. */
  readonly memoryBytes: number;
  /** Memory for caches, which calls then use where it lies. */
  allocate(byteLength: number): Memory;
  context(options?: s.ContextOptions): Context;
  /** By its text form or a preset's name; `values` are properties to set. */
  policy(text: string, values?: Partial<PolicyParameters>): Policy;
  policies(): Filled<s.PolicyInfo>[];
  presets(): Filled<s.PresetInfo>[];
  dtypes(): Filled<s.DTypeInfo>[];
  /** The parameters of a policy by name; without one, of all. */
  parameters(policy?: string): Filled<s.ParameterInfo>[];
  simdTargets(): string[];
  reasonText(reason: Reason): string;
  /** A budget for a model whose full cache has so many bytes; 0: do not evict. */
  autoBudget(maxTokens: number, fullCacheBytes: number | bigint): number;
  /** The same call for many sequences; all items are checked before the first one changes. */
  sequencesAppend(items: { sequence: Sequence; nTokens: number }[]): void;
  sequencesTrimTo(items: { sequence: Sequence; newLength: number }[]): void;
  sequencesObserve(items: {
    sequence: Sequence;
    observations: s.Observation[];
    nRows: number;
    firstPosition?: number;
  }[]): void;
  sequencesEvict(items: {
    sequence: Sequence;
    views: View[];
    options?: s.EvictOptions;
  }[]): Filled<s.EvictReport>[];
  /** Throws what is wrong with a view of so many tokens. */
  validateView(view: View, nTokens: number): void;
}

type Source = WebAssembly.Module | ArrayBuffer | ArrayBufferView | Response | URL | string;
/** Loads a module, by default the small one; the configuration layer then uses it. */
export declare function load(source?: Source | Promise<Source>): Promise<Kvevict>;
/** Every policy, for caches in f32, f16 and bf16. */
export declare const smallModule: URL;
/** Quantized caches and attention, too. */
export declare const fullModule: URL;

/** Bytes of a packed row. */
export declare function rowBytes(dtype: DType, headDim: number): number;
/** Rows as [tokens, nHeads, headDim]. */
export declare function tokenMajor(data: Data, nHeads: number, headDim: number,
                                   dtype?: DType): s.Plane;
/** Rows as [heads, nSlots, headDim]. */
export declare function headMajor(data: Data, nSlots: number, headDim: number,
                                  dtype?: DType): s.Plane;
