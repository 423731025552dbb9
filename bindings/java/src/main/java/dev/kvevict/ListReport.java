package dev.kvevict;

/** What an eviction did to one keep list. */
public sealed interface ListReport permits Records.ListReport {
  /** {@return the layer} */
  int layer();

  /** {@return slots in use before} */
  int tokensBefore();

  /** {@return slots in use then} */
  int tokensAfter();
}
