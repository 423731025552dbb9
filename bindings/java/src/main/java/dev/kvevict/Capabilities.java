package dev.kvevict;

/** What a plan can do with a layer, and why not. */
public sealed interface Capabilities permits Records.Capabilities {
  /** {@return whether rows can be moved} */
  boolean canMove();

  /** {@return whether keys can be scored} */
  boolean canScore();

  /** {@return whether keys can be re-rotated} */
  boolean canRotate();

  /** {@return why they cannot be moved} */
  Reason moveReason();

  /** {@return why they cannot be scored} */
  Reason scoreReason();

  /** {@return why they cannot be re-rotated} */
  Reason rotateReason();

  /** {@return whether the policy has to score keys to evict} */
  boolean needsScore();

  /**
   * {@return the number that a view's block size must divide for an eviction {@link
   * EvictOptions#withByTable}; 0 if {@link #moveReason} says why not}
   */
  int tableBlock();

  /** {@return whether each KV head needs its own block table for that, since lists differ} */
  boolean needsHeadTables();

  /** {@return whether each layer needs its own tables for that, since lists differ} */
  boolean needsLayerTables();
}
