package dev.kvevict;

/** How several numbers become one; NaN in, NaN out. The constants have the C ABI's order. */
public enum Reduce {
  /** The mean. */
  MEAN,
  /** The maximum. */
  MAX,
  /** The sum. */
  SUM
}
