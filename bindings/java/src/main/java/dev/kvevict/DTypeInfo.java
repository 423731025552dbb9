package dev.kvevict;

/** One row of the table of element types. */
public sealed interface DTypeInfo permits Records.DTypeInfo {
  /** {@return the type} */
  DType dtype();

  /** {@return the name, such as {@code "f32"}} */
  String name();

  /** {@return bytes per element; 0 where elements are not bytes of their own} */
  int elementBytes();

  /** {@return whether compaction moves it} */
  boolean canMove();

  /** {@return whether a signal can read keys of it} */
  boolean canScore();

  /** {@return whether RoPE can be re-applied to keys of it} */
  boolean canRotate();

  /** {@return the elements that are stored together; 0 for opaque} */
  int blockElements();

  /** {@return the bytes that these take} */
  int blockBytes();

  /** {@return 1 if rows may have a scale, in a companion; 2 if they must, to be read} */
  int takesScale();

  /** {@return whether rows may have a minimum, in a companion} */
  boolean takesMinimum();
}
