package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.IntBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;

/** The positions and lengths of a {@link Sequence}: how they begin, are saved and are told. */
abstract class SequenceState extends Handle {
  private final int listCount; // of all layers
  private final Struct report = new Struct(Abi.EvictReport.SIZEOF);

  SequenceState(long pointer, int listCount, Hooks hooks) {
    super(pointer, Native::kvevict_sequence_destroy, hooks);
    this.listCount = listCount;
  }

  /**
   * Begins an empty sequence from caches that are filled already: every list holds the tokens before
   * tokenCount.
   *
   * @param tokenCount the logical length
   */
  public void start(int tokenCount) {
    start(tokenCount, 0);
  }

  /**
   * Begins an empty sequence from caches that are filled already: every list holds the tokens before
   * tokenCount.
   *
   * @param tokenCount the logical length
   * @param stream a CUstream; ignored on the CPU
   */
  public void start(int tokenCount, long stream) {
    Memory.count(tokenCount, "tokenCount");
    long sequence = enterAlone();
    try {
      Native.kvevict_sequence_start(sequence, 0, 0, tokenCount, stream);
    } finally {
      leave();
    }
  }

  /**
   * Begins an empty sequence from caches that are filled already: a restored session, a beam, a
   * prefix that requests share.
   *
   * @param layers the positions that each layer's slots hold, ascending: one list, or one for
   *     each of its keep lists, see {@link LayerInfo}; null for layers without a full cache
   * @param tokenCount the logical length, above every position
   */
  public void start(List<int[][]> layers, int tokenCount) {
    start(layers, tokenCount, 0);
  }

  /**
   * Begins an empty sequence from caches that are filled already. On CUDA this waits.
   *
   * @param layers see the other overload
   * @param tokenCount the logical length, above every position
   * @param stream a CUstream; ignored on the CPU
   */
  public void start(List<int[][]> layers, int tokenCount, long stream) {
    Memory.count(tokenCount, "tokenCount");
    int n = layers.size();
    int counts = n * Abi.PositionLists.SIZEOF;
    int positions = counts;
    int end = counts;
    for (int[][] lists : layers) {
      int listCount = lists == null ? 0 : lists.length;
      positions = Math.addExact(positions, 4 * listCount);
      end = Math.addExact(end, Math.multiplyExact(4 * listCount, 1 + most(lists)));
    }
    long sequence = enterAlone();
    try (Struct in = new Struct(end)) {
      for (int layer = 0; layer < n; ++layer) {
        int at = layer * Abi.PositionLists.SIZEOF;
        int[][] lists = layers.get(layer);
        in.putInt(at + Abi.PositionLists.STRUCT_SIZE, Abi.PositionLists.SIZEOF);
        if (lists == null) {
          continue;
        }
        int most = most(lists);
        in.putInt(at + Abi.PositionLists.N_LISTS, lists.length)
            .putLong(at + Abi.PositionLists.POSITIONS, in.address + positions)
            .putLong(at + Abi.PositionLists.POSITIONS_LEN, (long) lists.length * most)
            .putInt(at + Abi.PositionLists.COUNT, most)
            .putLong(at + Abi.PositionLists.COUNTS, in.address + counts);
        for (int[] list : lists) {
          in.putInt(counts, list.length);
          counts += 4;
          for (int i = 0; i < list.length; ++i) {
            in.putInt(positions + 4 * i, list[i]);
          }
          positions += 4 * most;
        }
      }
      Native.kvevict_sequence_start(sequence, in.address, n, tokenCount, stream);
    } finally {
      leave();
    }
  }

  private static int most(int[][] lists) {
    return lists == null ? 0 : Arrays.stream(lists).mapToInt(list -> list.length).max().orElse(0);
  }

  /**
   * Positions and lengths as bytes, for {@link #load} in any process, on any machine; not the cache,
   * the queries or the report. On CUDA this waits for the last eviction.
   *
   * @return the bytes, with a version and a CRC-32 among them
   */
  public byte[] save() {
    long sequence = enterAlone();
    try {
      byte[] data =
          new byte[Math.toIntExact(Native.kvevict_sequence_save(sequence, 0, 0))];
      ByteBuffer out = ByteBuffer.allocateDirect(data.length);
      Native.kvevict_sequence_save(sequence, Memory.address(out, "data"), data.length);
      out.get(data);
      return data;
    } finally {
      leave();
    }
  }

  /**
   * Makes this sequence what one was that {@link #save} saved, of a plan with the same layers and
   * keep lists. Where that cannot be it is as before.
   *
   * @param data the bytes
   */
  public void load(byte[] data) {
    load(data, 0);
  }

  /**
   * Makes this sequence what one was that {@link #save} saved. On CUDA this waits.
   *
   * @param data the bytes
   * @param stream a CUstream; ignored on the CPU
   */
  public void load(byte[] data, long stream) {
    ByteBuffer in = ByteBuffer.allocateDirect(data.length).put(data).flip();
    long sequence = enterAlone();
    try {
      Native.kvevict_sequence_load(sequence, Memory.address(in, "data"), data.length, stream);
    } finally {
      leave();
      Reference.reachabilityFence(in);
    }
  }

  /** Forgets everything, as if newly created, but keeps query memory. */
  public void reset() {
    reset(0);
  }

  /**
   * Forgets everything, as if newly created, but keeps query memory.
   *
   * @param stream a CUstream; ignored on the CPU
   */
  public void reset(long stream) {
    long sequence = enterAlone();
    try {
      Native.kvevict_sequence_reset(sequence, stream);
    } finally {
      leave();
    }
  }

  /**
   * What the last eviction did.
   *
   * @return its report; all 0 before the first one and after a reset
   */
  public EvictReport report() {
    long sequence = enterAlone();
    try {
      return report(sequence);
    } finally {
      leave();
    }
  }

  EvictReport report(long sequence) {
    try (Struct out = report.putInt(Abi.EvictReport.STRUCT_SIZE, Abi.EvictReport.SIZEOF)) {
      Native.kvevict_sequence_report(sequence, out.address, 0, 0);
      return Records.EvictReport.read(out, 0);
    }
  }

  /**
   * What the last eviction did to each keep list.
   *
   * @return the lists of all layers end to end, see {@link LayerInfo}
   */
  public List<ListReport> listReports() {
    int size = Abi.ListReport.SIZEOF;
    long sequence = enterAlone();
    try (Struct out = new Struct(listCount * size)) {
      IntStream.range(0, listCount).forEach(i -> out.putInt(i * size, size));
      Native.kvevict_sequence_report(sequence, 0, out.address, listCount);
      return IntStream.range(0, listCount)
          .<ListReport>mapToObj(i -> Records.ListReport.read(out, i * size)).toList();
    } finally {
      leave();
    }
  }

  /**
   * The addresses of a layer's state, for the engine's own kernels.
   *
   * @param layer the layer
   * @return addresses and counts
   */
  public SequenceMemory memoryOf(int layer) {
    long sequence = enterAlone();
    try (Struct out = Struct.sized(Abi.SequenceMemory.SIZEOF)) {
      Native.kvevict_sequence_memory_of(sequence, layer, out.address);
      return Records.SequenceMemory.read(out);
    } finally {
      leave();
    }
  }

  /**
   * Slots in use in a layer: where its next row goes; of KV head 0, where heads differ.
   *
   * @param layer one with a full cache: {@link Plan#layer} tells which ones have it
   * @return slots
   */
  public int storedLength(int layer) {
    return storedLength(layer, 0);
  }

  /**
   * Slots in use by a layer and KV head: where its next row goes.
   *
   * @param layer one with a full cache
   * @param kvHead the KV head; all alike unless the plan has budgets for each
   * @return slots
   */
  public int storedLength(int layer, int kvHead) {
    long sequence = enterAlone();
    try {
      return Native.kvevict_sequence_stored_length(sequence, layer, kvHead);
    } finally {
      leave();
    }
  }

  /**
   * Tokens seen so far: the position (for RoPE) of the next one.
   *
   * @return tokens
   */
  public int logicalLength() {
    long sequence = enterAlone();
    try {
      return Native.kvevict_sequence_logical_length(sequence);
    } finally {
      leave();
    }
  }

  /**
   * How many tokens are still where they were stored, in every list of every layer. Another
   * request with the same tokens can use these. On CUDA this waits for the last eviction.
   *
   * @return tokens; 0 after an eviction that merged
   */
  public int exactPrefix() {
    long sequence = enterAlone();
    try {
      return Native.kvevict_sequence_exact_prefix(sequence);
    } finally {
      leave();
    }
  }

  /**
   * The position of the token in a slot.
   *
   * @param layer the layer
   * @param kvHead the KV head; all alike unless the scope is KV_HEAD
   * @param slot below the layer's stored length
   * @return the position
   */
  public int positionOfSlot(int layer, int kvHead, int slot) {
    long sequence = enterAlone();
    try {
      return Native.kvevict_sequence_position_of_slot(sequence, layer, kvHead, slot);
    } finally {
      leave();
    }
  }

  /**
   * The slot that holds the token of a position.
   *
   * @param layer the layer
   * @param kvHead the KV head; all alike unless the scope is KV_HEAD
   * @param position below the logical length
   * @return the slot; -1 if the token was evicted
   */
  public int slotOfPosition(int layer, int kvHead, int position) {
    long sequence = enterAlone();
    try {
      return Native.kvevict_sequence_slot_of_position(sequence, layer, kvHead, position);
    } finally {
      leave();
    }
  }

  /**
   * The positions of all slots of a layer and KV head, ascending.
   *
   * @param layer the layer
   * @param kvHead the KV head; all alike unless the scope is KV_HEAD
   * @return a position per slot
   */
  public int[] keepPositions(int layer, int kvHead) {
    int[] positions = new int[storedLength(layer, kvHead)];
    IntBuffer buffer = Memory.allocateInts(positions.length);
    keepPositions(layer, kvHead, buffer);
    buffer.get(0, positions);
    return positions;
  }

  /**
   * The positions of all slots of a layer and KV head, ascending.
   *
   * @param layer the layer
   * @param kvHead the KV head; all alike unless the scope is KV_HEAD
   * @param positions out: room for the stored length; direct, in native order
   * @return the number written from the buffer's position on, which does not move
   */
  public int keepPositions(int layer, int kvHead, IntBuffer positions) {
    long sequence = enterAlone();
    try {
      return (int) Native.kvevict_sequence_keep_positions(sequence, layer, kvHead,
          Memory.output(positions, "positions"), positions.remaining());
    } finally {
      leave();
      Reference.reachabilityFence(positions);
    }
  }
}
