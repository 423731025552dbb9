package dev.kvevict;

/** How the budget is spread over the layers. The constants have the C ABI's order. */
public enum LayerSplit {
  /** The same for every layer. */
  UNIFORM,
  /** Weights alpha^layer, largest-remainder rounding; the sum is exact. */
  GEOMETRIC,
  /** Integer steps from 2c - c/beta down to c/beta, as KVCache-Factory computes them. */
  ARITHMETIC_KVF,
  /** The same in floating point with the window on top, as kvpress computes it. */
  ARITHMETIC_KVPRESS
}
