package dev.kvevict;

/** Where a sequence keeps a layer's state, on the device of its context. */
public sealed interface SequenceMemory permits Records.SequenceMemory {
  /** {@return the address of u32 [nLayers, 2]: stored and logical length; fixed for life} */
  long lengths();

  /**
   * {@return the address of i32 [nLists, nListed]: positions of a layer's first nListed slots;
   * moves with every eviction}
   */
  long positions();

  /** {@return how many slots have their positions listed; those after count up by one} */
  int nListed();

  /** {@return 1, or the KV heads} */
  int nLists();
}
