package dev.kvevict;

/** What an eviction did to one keep list. */
public sealed interface ListReport permits Records.ListReport {
  /** {@return the layer} */
  int layer();

  /** {@return slots in use before} */
  int tokensBefore();

  /** {@return slots in use then} */
  int tokensAfter();

  /**
   * {@return the share of the list's mass that stayed: of the scores that chose it, if these
   * are attention or the caller's; NaN if it is not known, as for a plan that does not report
   * mass}
   */
  float massKept();

  /** {@return the largest mass of a single token that went, as a share; NaN likewise} */
  float largestMassEvicted();
}
