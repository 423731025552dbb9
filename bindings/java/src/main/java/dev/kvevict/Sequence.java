package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.IntBuffer;
import java.util.List;

/**
 * What one request carries between steps: the position of every slot, stored and logical length,
 * and, while it observes, the last queries of every layer. One thread at a time; a second one gets
 * an IllegalStateException. On CUDA its work must have run when it is closed or becomes unreachable.
 */
public final class Sequence extends Handle {
  /**
   * As firstPosition: the sequence's logical length. On CUDA it is read when the work runs, so that
   * a captured graph goes on where the sequence is.
   */
  public static final int POSITION_NEXT = Abi.POSITION_NEXT;

  private final Geometry geometry;
  private final boolean headsDiffer;
  private final Device device;
  private final int nLists; // of a layer

  /**
   * A call's arguments: options, report, a plane per layer, a view per layer, the tokens of lists
   * before and after. Each has its place, so that fields which are not written stay zero.
   */
  private final Struct arguments;

  /** Keeps memory that was lent for query rows reachable. */
  private ByteBuffer lent;

  private static final int REPORT = Abi.EvictOptions.SIZEOF;
  private static final int PLANES = REPORT + Abi.EvictReport.SIZEOF;
  private final int views;

  Sequence(long pointer, Geometry geometry, boolean headsDiffer, Hooks hooks) {
    super(pointer, Native::kvevict_sequence_destroy, hooks);
    this.geometry = geometry;
    this.headsDiffer = headsDiffer;
    device = hooks.device;
    nLists = memoryOf(0).nLists();
    views = PLANES + geometry.nLayers() * Abi.Plane.SIZEOF;
    arguments = new Struct(views + geometry.nLayers() * (Abi.View.SIZEOF + 2 * 4 * nLists));
  }

  /**
   * The stream of the next calls. The caller orders it after the one before.
   *
   * @param stream a CUstream; 0 is the default stream
   */
  public void setStream(long stream) {
    long sequence = enterAlone();
    try {
      Native.kvevict_sequence_set_stream(sequence, stream);
    } finally {
      leave();
    }
  }

  /**
   * Takes memory for query rows from the context, which keeps what is given back. For policies that
   * score by queries: before the first {@link #observe}; for others it does nothing.
   */
  public void beginObserving() {
    beginObserving(0, 0);
  }

  /**
   * Keeps query rows in memory of the caller's until {@link #endObserving}, on the CPU.
   *
   * @param memory direct; {@link Plan#queryMemoryBytes} bytes, 64-byte aligned
   */
  public void beginObserving(ByteBuffer memory) {
    Memory.requireCpu(device, "memory");
    beginObserving(Memory.address(memory, "memory"), Memory.bytes(memory));
    lent = memory;
  }

  /**
   * Keeps query rows in memory of the caller's until {@link #endObserving}.
   *
   * @param memory address of {@link Plan#queryMemoryBytes} bytes, aligned as a workspace; 0 with 0
   *     bytes: of the context's
   * @param memoryBytes its bytes
   */
  public void beginObserving(long memory, long memoryBytes) {
    long sequence = enterAlone();
    try {
      Native.kvevict_sequence_begin_observing(sequence, memory, memoryBytes);
    } finally {
      leave();
    }
  }

  /**
   * Forgets the query rows and gives their memory back, once the eviction that uses them is done: on
   * CUDA its work must have run. A sequence that only decodes does without.
   */
  public void endObserving() {
    long sequence = enterAlone();
    try {
      Native.kvevict_sequence_end_observing(sequence);
      lent = null;
    } finally {
      leave();
    }
  }

  /** Forgets everything, as if newly created, but keeps query memory. */
  public void reset() {
    long sequence = enterAlone();
    try {
      Native.kvevict_sequence_reset(sequence);
    } finally {
      leave();
    }
  }

  /**
   * Shows a layer's query rows of one chunk; the last obsWindow are remembered. Showing earlier
   * positions again replaces them and forgets what came after (rollback).
   *
   * @param layer which
   * @param queries [nQHeads, nRows] rows, after RoPE; copied
   * @param nRows 0 does nothing
   * @param firstPosition position of row 0, or {@link #POSITION_NEXT}
   */
  public void observe(int layer, Plane queries, int nRows, int firstPosition) {
    queries.require(Memory.count(nRows, "nRows"), geometry.nQHeads(), "queries");
    long sequence = enterAlone();
    try {
      Plane.write(queries, arguments, PLANES);
      Native.kvevict_sequence_observe(
          sequence, layer, arguments.address + PLANES, nRows, firstPosition);
    } finally {
      leave();
      Reference.reachabilityFence(arguments);
      Reference.reachabilityFence(queries);
    }
  }

  /**
   * Shows the query rows of one chunk in every layer: {@link #observe} for all layers or, if one is
   * refused, for none. On CUDA one launch, where the strides of all layers are the same.
   *
   * @param queries one per layer: [nQHeads, nRows] rows, after RoPE; copied
   * @param nRows of each layer; 0 does nothing
   * @param firstPosition position of row 0, or {@link #POSITION_NEXT}
   */
  public void observeLayers(List<Plane> queries, int nRows, int firstPosition) {
    Memory.count(nRows, "nRows");
    Plane[] planes = queries.toArray(new Plane[0]);
    if (planes.length != geometry.nLayers()) {
      throw new IllegalArgumentException(
          planes.length + " queries for " + geometry.nLayers() + " layers");
    }
    for (int layer = 0; layer < planes.length; ++layer) {
      planes[layer].require(nRows, geometry.nQHeads(), "queries[" + layer + "]");
    }
    long sequence = enterAlone();
    try {
      for (int layer = 0; layer < planes.length; ++layer) {
        Plane.write(planes[layer], arguments, PLANES + layer * Abi.Plane.SIZEOF);
      }
      Native.kvevict_sequence_observe_layers(
          sequence, arguments.address + PLANES, planes.length, nRows, firstPosition);
    } finally {
      leave();
      Reference.reachabilityFence(arguments);
      Reference.reachabilityFence(planes);
    }
  }

  /**
   * Shows the log-sum-exps of query rows, which saves CUDA a pass over the keys.
   *
   * @param layer which
   * @param rowLse [nQHeads, nRows] f32, headDim 1; copied
   * @param nRows 0 does nothing
   * @param firstPosition as for {@link #observe}: of rows that were observed before
   */
  public void observeLse(int layer, Plane rowLse, int nRows, int firstPosition) {
    rowLse.require(Memory.count(nRows, "nRows"), geometry.nQHeads(), "rowLse");
    long sequence = enterAlone();
    try {
      Plane.write(rowLse, arguments, PLANES);
      Native.kvevict_sequence_observe_lse(
          sequence, layer, arguments.address + PLANES, nRows, firstPosition);
    } finally {
      leave();
      Reference.reachabilityFence(arguments);
      Reference.reachabilityFence(rowLse);
    }
  }

  /**
   * Notes that the engine stored more rows in every layer, each at the layer's next slot and with
   * the next positions.
   *
   * @param nTokens how many
   */
  public void append(int nTokens) {
    Memory.count(nTokens, "nTokens");
    long sequence = enterAlone();
    try {
      Native.kvevict_sequence_append(sequence, nTokens);
    } finally {
      leave();
    }
  }

  /**
   * Notes on the host that a graph ran once more which observed and appended.
   *
   * @param nTokens how many
   */
  public void replayed(int nTokens) {
    Memory.count(nTokens, "nTokens");
    long sequence = enterAlone();
    try {
      Native.kvevict_sequence_replayed(sequence, nTokens);
    } finally {
      leave();
    }
  }

  /**
   * Takes back the last tokens, for example rejected speculation. Exact down to the logical length
   * at the last eviction; no cache byte changes.
   *
   * @param nTokens the logical length to return to
   */
  public void trim(int nTokens) {
    Memory.count(nTokens, "nTokens");
    long sequence = enterAlone();
    try {
      Native.kvevict_sequence_trim(sequence, nTokens);
    } finally {
      leave();
    }
  }

  /**
   * Scores, selects and compacts the cache of a whole model in place, on the CPU.
   *
   * @param views one per layer
   * @param workspace for {@link Operation#EVICT}
   * @return what was done
   */
  public EvictReport evict(List<View> views, ByteBuffer workspace) {
    return evict(views, EvictOptions.NONE, workspace);
  }

  /**
   * Scores, selects and compacts the cache of a whole model in place, on the CPU.
   *
   * @param views one per layer
   * @param options protected positions, custom scores
   * @param workspace for {@link Operation#EVICT}
   * @return what was done
   */
  public EvictReport evict(List<View> views, EvictOptions options, ByteBuffer workspace) {
    EvictReport report = evict(
        views, options, Memory.workspace(device, workspace), Memory.workspaceBytes(workspace));
    Reference.reachabilityFence(workspace);
    return report;
  }

  /**
   * Scores, selects and compacts the cache of a whole model in place. Every check is made before
   * the first byte moves. Afterwards the next token goes to slot {@link #storedLength} with position
   * {@link #logicalLength}.
   *
   * @param views one per layer
   * @param options protected positions, custom scores
   * @param workspace address of scratch for {@link Operation#EVICT}
   * @param workspaceBytes its bytes
   * @return what was done
   */
  public EvictReport evict(
      List<View> views, EvictOptions options, long workspace, long workspaceBytes) {
    int n = views.size();
    if (n != geometry.nLayers()) {
      throw new IllegalArgumentException(n + " views for " + geometry.nLayers() + " layers");
    }
    View.Content[] caches = new View.Content[n];
    long sequence = enterAlone();
    try {
      for (int layer = 0; layer < n; ++layer) {
        View.Content cache = views.get(layer).content(device);
        if (!cache.holds(geometry.maxTokens())) {
          cache.require(mostStored(sequence, layer));
        }
        cache.requireWritable();
        arguments.copyFrom(cache.struct, this.views + layer * Abi.View.SIZEOF);
        caches[layer] = cache;
      }
      options.write(device, arguments);
      long base = arguments.address;
      int before = this.views + n * Abi.View.SIZEOF;
      int after = before + 4 * n * nLists;
      arguments.putInt(REPORT + Abi.EvictReport.STRUCT_SIZE, Abi.EvictReport.SIZEOF)
          .putLong(REPORT + Abi.EvictReport.LIST_TOKENS_BEFORE, base + before)
          .putLong(REPORT + Abi.EvictReport.LIST_TOKENS_AFTER, base + after)
          .putLong(REPORT + Abi.EvictReport.LIST_TOKENS_LEN, n * nLists);
      Native.kvevict_sequence_evict(
          sequence, base + this.views, n, base, workspace, workspaceBytes, base + REPORT);
      return Records.EvictReport.read(arguments, REPORT, arguments.intsAt(before, n * nLists),
          arguments.intsAt(after, n * nLists));
    } finally {
      leave();
      Reference.reachabilityFence(arguments);
      Reference.reachabilityFence(options);
      Reference.reachabilityFence(caches);
    }
  }

  /**
   * Where the state of a layer lies, for the engine's own kernels.
   *
   * @param layer which
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
   * @param layer which
   * @return slots
   */
  public int storedLength(int layer) {
    return storedLength(layer, 0);
  }

  /**
   * Slots in use by a layer and KV head: where its next row goes.
   *
   * @param layer which
   * @param kvHead which; all alike unless the plan has budgets for each
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

  /** Slots in use by any head of a layer. */
  private int mostStored(long sequence, int layer) {
    int most = Native.kvevict_sequence_stored_length(sequence, layer, 0);
    for (int head = 1; headsDiffer && head < geometry.nKvHeads(); ++head) {
      most = Math.max(most, Native.kvevict_sequence_stored_length(sequence, layer, head));
    }
    return most;
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
   * The position of the token in a slot.
   *
   * @param layer which
   * @param kvHead which; all alike unless the scope is KV_HEAD
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
   * @param layer which
   * @param kvHead which; all alike unless the scope is KV_HEAD
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
   * @param layer which
   * @param kvHead which; all alike unless the scope is KV_HEAD
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
   * @param layer which
   * @param kvHead which; all alike unless the scope is KV_HEAD
   * @param positions out: room for the stored length; direct, in native order
   * @return how many were written, from the buffer's position on, which does not move
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
