package dev.kvevict;

/** The named policies. The constants have the C ABI's order. */
public enum PolicyKind {
  /** Touches nothing. */
  NONE,
  /** First and last tokens: arXiv:2309.17453. */
  STREAMING_LLM,
  /** Attention of the last queries, pooled: arXiv:2404.14469. */
  SNAPKV,
  /** SnapKV with more tokens for lower layers: arXiv:2406.02069. */
  PYRAMIDKV,
  /** A seeded baseline: every token and KV head draws its own number. */
  RANDOM,
  /** The caller's scores, see {@link EvictOptions}. */
  CUSTOM
}
