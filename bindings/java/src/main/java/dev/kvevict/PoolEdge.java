package dev.kvevict;

/** What average pooling divides by where the kernel hangs over an edge. */
public enum PoolEdge implements CEnum {
  /** The full width: outside counts as zeros. What published code does. */
  PAD(0),
  /** The number of terms inside. */
  SHRINK(1);

  private final int value;

  PoolEdge(int value) {
    this.value = value;
  }

  @Override
  public int value() {
    return value;
  }
}
