package dev.kvevict;

/** Which comes first: reducing the query heads of a KV head, or pooling. */
public enum ShapingOrder implements CEnum {
  /** Reduces first. */
  REDUCE_THEN_POOL(0),
  /** Pools first. */
  POOL_THEN_REDUCE(1);

  private final int value;

  ShapingOrder(int value) {
    this.value = value;
  }

  @Override
  public int value() {
    return value;
  }
}
