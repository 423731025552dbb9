package dev.kvevict;

/** The executing calls that take a workspace. The constants have the C ABI's order. */
public enum Operation {
  /** {@link Sequence#evict}. */
  EVICT,
  /** {@link Plan#scoreWindow}. */
  SCORE_WINDOW,
  /** {@link Plan#select}. */
  SELECT
}
