package dev.kvevict;

/** Pooling of scores along the tokens, stride 1. */
public enum Pool implements CEnum {
  /** No pooling. */
  NONE(0),
  /** The mean. */
  AVG(1),
  /** The maximum. */
  MAX(2);

  private final int value;

  Pool(int value) {
    this.value = value;
  }

  @Override
  public int value() {
    return value;
  }
}
