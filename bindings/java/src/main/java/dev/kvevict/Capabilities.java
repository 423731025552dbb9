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
   * {@return what an eviction {@link EvictOptions#withByTable} wants to be a multiple of a view's
   * block size; 0 where {@link #moveReason} says why not}
   */
  int tableBlock();

  /** {@return whether each KV head needs a block table of its own for that, as lists differ} */
  boolean needsHeadTables();

  /** {@return whether each layer needs tables of its own for that, as lists differ} */
  boolean needsLayerTables();
}
