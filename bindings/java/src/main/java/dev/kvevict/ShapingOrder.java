package dev.kvevict;

/** Which comes first: reducing the query heads of a KV head, or pooling. The constants have the C ABI's order. */
public enum ShapingOrder {
  /** Reduces first. */
  REDUCE_THEN_POOL,
  /** Pools first. */
  POOL_THEN_REDUCE
}
