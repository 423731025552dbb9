package dev.kvevict;

/** One row of the table of element types. */
public sealed interface DTypeInfo permits Records.DTypeInfo {
  /** {@return the type} */
  DType dtype();

  /** {@return as in {@code "f32"}} */
  String name();

  /** {@return bytes per element; 0 for opaque} */
  int elementBytes();

  /** {@return whether compaction moves it} */
  boolean canMove();

  /** {@return whether a signal can read keys of it} */
  boolean canScore();

  /** {@return whether RoPE can be re-applied to keys of it} */
  boolean canRotate();
}
