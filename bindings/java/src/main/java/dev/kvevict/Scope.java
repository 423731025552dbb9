package dev.kvevict;

/** What shares one keep list. */
public enum Scope implements CEnum {
  /** Every KV head has its own. */
  KV_HEAD(0),
  /** The heads of a layer. */
  LAYER(1),
  /** All layers. */
  MODEL(2);

  private final int value;

  Scope(int value) {
    this.value = value;
  }

  @Override
  public int value() {
    return value;
  }
}
