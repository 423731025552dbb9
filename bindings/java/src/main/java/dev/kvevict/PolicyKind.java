package dev.kvevict;

/** The named policies. */
public enum PolicyKind implements CEnum {
  /** Touches nothing. */
  NONE(0),
  /** First and last tokens: arXiv:2309.17453. */
  STREAMING_LLM(1),
  /** Attention of the last queries, pooled: arXiv:2404.14469. */
  SNAPKV(2),
  /** SnapKV with more tokens for lower layers: arXiv:2406.02069. */
  PYRAMIDKV(3),
  /** A seeded baseline: every token and KV head draws its own number. */
  RANDOM(4),
  /** The caller's scores, see {@link EvictOptions}. */
  CUSTOM(5);

  private final int value;

  PolicyKind(int value) {
    this.value = value;
  }

  @Override
  public int value() {
    return value;
  }
}
