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
}
