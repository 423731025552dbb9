package dev.kvevict;

/** What average pooling divides by where the kernel hangs over an edge. The constants have the C ABI's order. */
public enum PoolEdge {
  /** The full width: outside counts as zeros. What published code does. */
  PAD,
  /** The number of terms inside. */
  SHRINK
}
