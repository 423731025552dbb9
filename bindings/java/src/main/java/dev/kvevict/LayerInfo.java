package dev.kvevict;

/** What a layer is for a plan. */
public sealed interface LayerInfo permits Records.LayerInfo {
  /** {@return what it keeps} */
  LayerCache cache();

  /** {@return query heads} */
  int queryHeads();

  /** {@return KV heads; 0 without a full cache} */
  int kvHeads();

  /**
   * {@return its keep lists: as many as KV heads where these may keep different tokens, else one;
   * 0 without a full cache}
   */
  int listCount();

  /** {@return the place of its first one where those of all layers lie end to end} */
  int firstList();
}
