package dev.kvevict;

/** Element types. The constants have the C ABI's order. */
public enum DType {
  /** Rows of bytes whose content is the engine's secret: they can be moved, not scored. */
  OPAQUE,
  /** IEEE 754 single precision. */
  F32,
  /** IEEE 754 half precision. */
  F16,
  /** The upper half of an f32. */
  BF16
}
