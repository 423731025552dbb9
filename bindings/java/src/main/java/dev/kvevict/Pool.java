package dev.kvevict;

/** Pooling of scores along the tokens, stride 1. The constants have the C ABI's order. */
public enum Pool {
  /** No pooling. */
  NONE,
  /** The mean. */
  AVG,
  /** The maximum. */
  MAX
}
