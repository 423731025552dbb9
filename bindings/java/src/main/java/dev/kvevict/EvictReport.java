package dev.kvevict;

/**
 * What an eviction did. Bytes count K, V and companions of all layers.
 *
 * @param evicted whether any layer lost a token
 * @param bytesBefore bytes in use before
 * @param bytesAfter bytes in use now
 * @param tokensBefore slots in use before, summed over the layers
 * @param tokensAfter slots in use now
 * @param blocksFreed paged: blocks, summed over the layers, that hold nothing any more
 */
public record EvictReport(
    boolean evicted,
    long bytesBefore,
    long bytesAfter,
    long tokensBefore,
    long tokensAfter,
    long blocksFreed) {
  static final int SIZE = 48;

  static EvictReport read(Struct in, int offset) {
    in.seek(offset + 4);
    return new EvictReport(
        in.getFlag(),
        in.getLong(),
        in.getLong(),
        in.getLong(),
        in.getLong(),
        in.getLong());
  }
}
