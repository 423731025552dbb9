package dev.kvevict;

/** Which of two equal scores survives. */
public enum Tie implements CEnum {
  /** The earlier token. */
  LOWER_POSITION(0),
  /** The later token. */
  HIGHER_POSITION(1);

  private final int value;

  Tie(int value) {
    this.value = value;
  }

  @Override
  public int value() {
    return value;
  }
}
