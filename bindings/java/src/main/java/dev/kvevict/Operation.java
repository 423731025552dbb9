package dev.kvevict;

/** The executing calls that take a workspace. */
public enum Operation implements CEnum {
  /** {@link Sequence#evict}. */
  EVICT(0),
  /** {@link Plan#scoreWindow}. */
  SCORE_WINDOW(1),
  /** {@link Plan#select}. */
  SELECT(2);

  private final int value;

  Operation(int value) {
    this.value = value;
  }

  @Override
  public int value() {
    return value;
  }
}
