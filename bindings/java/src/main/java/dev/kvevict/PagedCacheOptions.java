package dev.kvevict;

import java.nio.ByteBuffer;

/** How to make a {@link PagedCache}. Immutable. */
public final class PagedCacheOptions extends PagedCacheOptionsFields<PagedCacheOptions> {
  private ByteBuffer lent; // null unless the memory is a buffer
  private long memory;
  private long memoryBytes;

  private PagedCacheOptions() {}

  /**
   * Blocks of 16 tokens, in memory of the context.
   *
   * @param blockCount blocks for each layer; layers that are alike share theirs
   * @return the options
   */
  public static PagedCacheOptions of(int blockCount) {
    PagedCacheOptions options = new PagedCacheOptions();
    options.blockCount = Memory.count(blockCount, "blockCount");
    return options;
  }

  /**
   * The same with memory of the caller's for the blocks, on the CPU.
   *
   * @param blocks at least {@link Plan#pagedCacheBytes}, aligned to 256; direct
   * @return the options
   */
  public PagedCacheOptions withMemory(ByteBuffer blocks) {
    if (blocks.isReadOnly()) {
      throw new IllegalArgumentException("blocks is read-only");
    }
    PagedCacheOptions next = withMemory(Memory.address(blocks, "blocks"), Memory.bytes(blocks));
    next.lent = blocks;
    return next;
  }

  /**
   * The same with memory of the caller's for the blocks.
   *
   * @param blocks address of at least {@link Plan#pagedCacheBytes}, aligned to 256
   * @param bytes the number of bytes
   * @return the options
   */
  public PagedCacheOptions withMemory(long blocks, long bytes) {
    PagedCacheOptions next = next();
    next.lent = null;
    next.memory = blocks;
    next.memoryBytes = bytes;
    return next;
  }

  /** The C struct. */
  Struct write(Device device) {
    if (lent != null) {
      Memory.requireCpu(device, "blocks");
    }
    return fill(new Struct(Abi.PagedCacheOptions.SIZEOF), 0)
        .putLong(Abi.PagedCacheOptions.MEMORY, memory)
        .putLong(Abi.PagedCacheOptions.MEMORY_BYTES, memoryBytes);
  }
}
