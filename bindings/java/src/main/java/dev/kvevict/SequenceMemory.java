package dev.kvevict;

/** The addresses of a layer's state on the context's device. */
public sealed interface SequenceMemory permits Records.SequenceMemory {
  /**
   * {@return the address of u32 [listCount, 2]: stored and logical length of the layer's lists; those
   * of all layers lie end to end; fixed for life}
   */
  long lengths();

  /**
   * {@return the address of i32 [listCount, listedCount]: positions of a layer's first listedCount slots;
   * moves with every eviction}
   */
  long positions();

  /**
   * {@return the address of u32 [listCount]: how many slots each list has listed, if lists differ; 0
   * if all have listedCount; moves with every eviction}
   */
  long listedCounts();

  /** {@return the slots with listed positions, the most of any list; those after count up by one} */
  int listedCount();

  /** {@return keep lists of the layer, see {@link LayerInfo}} */
  int listCount();

  /**
   * {@return the address of f32 [sumHeads, sumStride]: the attention observed that each slot has
   * got; fixed while the sequence observes; 0 where it keeps none}
   */
  long sums();

  /** {@return rows of sums} */
  int sumHeads();

  /** {@return elements from row to row of sums} */
  long sumStride();
}
