package dev.kvevict;

/** What is in use of a {@link PagedCache}, at one moment. */
public sealed interface PagedCacheUsage permits Records.PagedCacheUsage {
  /** {@return sequences} */
  int sequenceCount();

  /** {@return blocks of all layers} */
  long blockCount();

  /** {@return the blocks that nobody holds} */
  long freeCount();

  /** {@return the blocks that several sequences hold} */
  long sharedCount();

  /** {@return rows of all layers that sequences hold, each for itself} */
  long slotCount();

  /** {@return bytes of all blocks, and of what sequences have for recent rows} */
  long bytes();

  /** {@return the bytes without the free blocks} */
  long bytesInUse();

  /** {@return what {@link #bytes} would be if all rows were f32} */
  long f32Bytes();
}
