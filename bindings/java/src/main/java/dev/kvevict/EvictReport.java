package dev.kvevict;

/** What an eviction did. Bytes count K, V and companions of all layers. */
public sealed interface EvictReport permits Records.EvictReport {
  /** {@return whether any layer lost a token} */
  boolean evicted();

  /** {@return bytes in use before} */
  long bytesBefore();

  /** {@return bytes in use then} */
  long bytesAfter();

  /**
   * {@return slots in use before, summed over the layers; of a layer whose heads differ, the most of
   * any head}
   */
  long tokensBefore();

  /** {@return slots in use then} */
  long tokensAfter();

  /** {@return paged: blocks, summed over the block tables, that hold nothing any more} */
  long blocksFreed();

  /**
   * {@return why layers were left alone that may be over their budgets: {@link Reason#OPEN_PROMPT},
   * then all were; {@link Reason#SMALL_BUDGET}, then one was at least}
   */
  Reason reason();

  /**
   * {@return KV heads whose values were fitted to fewer than twice as many queries as slots, so that
   * the policy's {@code fitRidge} decides}
   */
  int weakFits();
}
