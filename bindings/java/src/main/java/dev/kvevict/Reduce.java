package dev.kvevict;

/** How several numbers become one; NaN in, NaN out. */
public enum Reduce implements CEnum {
  /** The mean. */
  MEAN(0),
  /** The maximum. */
  MAX(1),
  /** The sum. */
  SUM(2);

  private final int value;

  Reduce(int value) {
    this.value = value;
  }

  @Override
  public int value() {
    return value;
  }
}
