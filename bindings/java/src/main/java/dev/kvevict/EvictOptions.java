package dev.kvevict;

import java.nio.FloatBuffer;
import java.nio.IntBuffer;

/** What an eviction may be told beside the policy. Immutable; start from {@link #NONE}. */
public final class EvictOptions {
  /** Nothing. */
  public static final EvictOptions NONE = new EvictOptions(null, null, 0, 0, 0, 0);

  private final IntBuffer positions;
  private final Object scoresOwner;
  private final long scores;
  private final long scoresLength;
  private final long layerStride;
  private final long headStride;

  private EvictOptions(IntBuffer positions, Object scoresOwner, long scores, long scoresLength,
      long layerStride, long headStride) {
    this.positions = positions;
    this.scoresOwner = scoresOwner;
    this.scores = scores;
    this.scoresLength = scoresLength;
    this.layerStride = layerStride;
    this.headStride = headStride;
  }

  /**
   * Positions that must stay.
   *
   * @param protectedPositions strictly ascending; those already evicted are ignored
   * @return these options with the positions
   */
  public EvictOptions withProtected(int... protectedPositions) {
    IntBuffer copy = Memory.allocateInts(protectedPositions.length).put(0, protectedPositions);
    return new EvictOptions(copy, scoresOwner, scores, scoresLength, layerStride, headStride);
  }

  /**
   * Scores for the policy custom, f32 of every layer's slots, the most of any head, on the CPU.
   *
   * @param buffer direct, in native order, from its position on
   * @param scoresLayerStride elements from one layer's scores to the next's
   * @param scoresHeadStride elements from one KV head's scores to the next's
   * @return these options with the scores
   */
  public EvictOptions withScores(
      FloatBuffer buffer, long scoresLayerStride, long scoresHeadStride) {
    return new EvictOptions(positions, buffer, Memory.numbers(buffer, "buffer"),
        buffer.remaining(), scoresLayerStride, scoresHeadStride);
  }

  /**
   * Scores for the policy custom, at an address.
   *
   * @param address on the context's device
   * @param length elements
   * @param scoresLayerStride elements from one layer's scores to the next's
   * @param scoresHeadStride elements from one KV head's scores to the next's
   * @return these options with the scores
   */
  public EvictOptions withScores(
      long address, long length, long scoresLayerStride, long scoresHeadStride) {
    return new EvictOptions(positions, null, address, Memory.count(length, "length"),
        scoresLayerStride, scoresHeadStride);
  }

  /** Writes these options to the begin of memory where nothing else ever lies. */
  void write(Device device, Struct out) {
    if (scoresOwner != null) {
      Memory.requireCpu(device, "scores");
    }
    boolean any = positions != null && positions.hasRemaining();
    out.putInt(Abi.EvictOptions.STRUCT_SIZE, Abi.EvictOptions.SIZEOF)
        .putLong(Abi.EvictOptions.PROTECTED_POSITIONS,
            any ? Memory.address(positions, "positions") : 0)
        .putLong(Abi.EvictOptions.PROTECTED_POSITIONS_LEN, any ? positions.remaining() : 0)
        .putLong(Abi.EvictOptions.SCORES, scores)
        .putLong(Abi.EvictOptions.SCORES_LEN, scoresLength)
        .putLong(Abi.EvictOptions.SCORES_LAYER_STRIDE, layerStride)
        .putLong(Abi.EvictOptions.SCORES_HEAD_STRIDE, headStride);
  }
}
