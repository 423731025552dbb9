package dev.kvevict;

/** What an eviction did. Bytes count K, V and companions of all layers. */
public sealed interface EvictReport permits Records.EvictReport {
  /** {@return whether any layer lost a token} */
  boolean evicted();

  /** {@return bytes in use before} */
  long bytesBefore();

  /** {@return bytes in use now} */
  long bytesAfter();

  /** {@return slots in use before, summed over the layers} */
  long tokensBefore();

  /** {@return slots in use now} */
  long tokensAfter();

  /** {@return paged: blocks, summed over the layers, that hold nothing any more} */
  long blocksFreed();
}
