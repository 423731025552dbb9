package dev.kvevict;

import java.nio.ByteBuffer;
import java.util.Objects;

/** How to make a {@link PagedCache}. Immutable. */
public final class PagedCacheOptions {
  private final int blockCount;
  private final int blockSize;
  private final BlockLayout layout;
  private final ByteBuffer lent; // null unless the memory is a buffer
  private final long memory;
  private final long memoryBytes;
  private final DType numberDType;
  private final int groupTokens;
  private final int recentTokens;
  private final DType recentDType;

  private PagedCacheOptions(int blockCount, int blockSize, BlockLayout layout, ByteBuffer lent,
      long memory, long memoryBytes, DType numberDType, int groupTokens, int recentTokens,
      DType recentDType) {
    this.blockCount = Memory.count(blockCount, "blockCount");
    this.blockSize = Memory.count(blockSize, "blockSize");
    this.layout = Objects.requireNonNull(layout, "layout");
    this.lent = lent;
    this.memory = memory;
    this.memoryBytes = memoryBytes;
    this.numberDType = Objects.requireNonNull(numberDType, "numberDType");
    this.groupTokens = Memory.count(groupTokens, "groupTokens");
    this.recentTokens = Memory.count(recentTokens, "recentTokens");
    this.recentDType = Objects.requireNonNull(recentDType, "recentDType");
  }

  /**
   * Blocks of 16 tokens, in memory of the context.
   *
   * @param blockCount blocks for each layer; layers that are alike share theirs
   * @return the options
   */
  public static PagedCacheOptions of(int blockCount) {
    return new PagedCacheOptions(blockCount, 0, BlockLayout.HEAD_MAJOR, null, 0, 0,
        DType.OPAQUE, 0, 0, DType.OPAQUE);
  }

  /**
   * The same with blocks of another size.
   *
   * @param tokenCount per block; 0: what shares the numbers of keys, or 16
   * @return the options
   */
  public PagedCacheOptions withBlockSize(int tokenCount) {
    return new PagedCacheOptions(blockCount, tokenCount, layout, lent, memory, memoryBytes,
        numberDType, groupTokens, recentTokens, recentDType);
  }

  /**
   * The same with rows that lie otherwise.
   *
   * @param blockLayout the layout of rows in a block
   * @return the options
   */
  public PagedCacheOptions withLayout(BlockLayout blockLayout) {
    return new PagedCacheOptions(blockCount, blockSize, blockLayout, lent, memory, memoryBytes,
        numberDType, groupTokens, recentTokens, recentDType);
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
    return new PagedCacheOptions(blockCount, blockSize, layout, blocks,
        Memory.address(blocks, "blocks"), Memory.bytes(blocks), numberDType, groupTokens,
        recentTokens, recentDType);
  }

  /**
   * The same with memory of the caller's for the blocks.
   *
   * @param blocks address of at least {@link Plan#pagedCacheBytes}, aligned to 256
   * @param bytes the number of bytes
   * @return the options
   */
  public PagedCacheOptions withMemory(long blocks, long bytes) {
    return new PagedCacheOptions(blockCount, blockSize, layout, null, blocks, bytes, numberDType,
        groupTokens, recentTokens, recentDType);
  }

  /**
   * The same with scales and minima of another dtype for each row of u8, i8, u4 and u4_halves, which is
   * f32 otherwise; and with scales for rows of fp8, which have none otherwise.
   *
   * @param dtype f32, f16 or bf16
   * @return the options
   */
  public PagedCacheOptions withNumberDType(DType dtype) {
    return new PagedCacheOptions(blockCount, blockSize, layout, lent, memory, memoryBytes, dtype,
        groupTokens, recentTokens, recentDType);
  }

  /**
   * The same with scales and minima of keys that so many tokens share, one per element.
   *
   * @param tokenCount divides the block size; 0: keys have theirs per token
   * @return the options
   */
  public PagedCacheOptions withGroupTokens(int tokenCount) {
    return new PagedCacheOptions(blockCount, blockSize, layout, lent, memory, memoryBytes,
        numberDType, tokenCount, recentTokens, recentDType);
  }

  /**
   * The same with last rows of a sequence that are not quantized.
   *
   * @param tokenCount the least number of tokens
   * @param dtype f32, f16 or bf16; opaque: f32
   * @return the options
   */
  public PagedCacheOptions withRecentTokens(int tokenCount, DType dtype) {
    return new PagedCacheOptions(blockCount, blockSize, layout, lent, memory, memoryBytes,
        numberDType, groupTokens, tokenCount, dtype);
  }

  /** The C struct. */
  Struct write(Device device) {
    if (lent != null) {
      Memory.requireCpu(device, "blocks");
    }
    return Struct.sized(Abi.PagedCacheOptions.SIZEOF)
        .putInt(Abi.PagedCacheOptions.N_BLOCKS, blockCount)
        .putInt(Abi.PagedCacheOptions.BLOCK_SIZE, blockSize)
        .putEnum(Abi.PagedCacheOptions.LAYOUT, layout)
        .putLong(Abi.PagedCacheOptions.MEMORY, memory)
        .putLong(Abi.PagedCacheOptions.MEMORY_BYTES, memoryBytes)
        .putEnum(Abi.PagedCacheOptions.NUMBER_DTYPE, numberDType)
        .putInt(Abi.PagedCacheOptions.GROUP_TOKENS, groupTokens)
        .putInt(Abi.PagedCacheOptions.RECENT_TOKENS, recentTokens)
        .putEnum(Abi.PagedCacheOptions.RECENT_DTYPE, recentDType);
  }
}
