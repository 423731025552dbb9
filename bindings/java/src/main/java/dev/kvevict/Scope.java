package dev.kvevict;

/** What shares one keep list. The constants have the C ABI's order. */
public enum Scope {
  /** Every KV head has its own. */
  KV_HEAD,
  /** The heads of a layer. */
  LAYER,
  /** All layers. */
  MODEL
}
