package dev.kvevict;

/** Which of two equal scores survives. The constants have the C ABI's order. */
public enum Tie {
  /** The earlier token. */
  LOWER_POSITION,
  /** The later token. */
  HIGHER_POSITION
}
