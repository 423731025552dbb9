package dev.kvevict;

/** Element types. */
public enum DType implements CEnum {
  /** Rows of bytes whose content is the engine's secret: they can be moved, not scored. */
  OPAQUE(0),
  /** IEEE 754 single precision. */
  F32(1),
  /** IEEE 754 half precision. */
  F16(2),
  /** The upper half of an f32. */
  BF16(3);

  private final int value;

  DType(int value) {
    this.value = value;
  }

  @Override
  public int value() {
    return value;
  }
}
