package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.IntBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.function.Supplier;
import java.util.stream.IntStream;

/**
 * What one request carries between steps: the position of every slot, stored and logical length,
 * and, while it observes, the last queries of every layer. One thread at a time; a second one gets
 * an IllegalStateException. On CUDA its work must have run when it is closed or becomes unreachable.
 */
public final class Sequence extends Handle {
  /**
   * A firstPosition that stands for the logical length. On CUDA it is read when the work runs, so that
   * a captured graph goes on where the sequence is.
   */
  public static final int POSITION_NEXT = Abi.POSITION_NEXT;

  private final Geometry geometry;
  private final int queryRows; // by which a layer is scored; below 0: as many as there are slots
  private final boolean headsDiffer;
  private final int listCount; // of all layers
  private final Device device;
  private final Hooks hooks;

  /**
   * A call's arguments: options, report, and for each layer an observation, inputs, their planes,
   * a view and a destination. Each has its place, so that fields which are not written stay zero.
   */
  private final Struct arguments;

  /** Rows behind those stored, for arguments that are read once they are appended. */
  private int ahead;

  /** Keeps memory that was lent for query rows reachable. */
  private ByteBuffer lent;

  private static final int REPORT = Abi.EvictOptions.SIZEOF;
  private static final int OBSERVATIONS = REPORT + Abi.EvictReport.SIZEOF;
  private final int inputs;
  private final int planes;
  private final int views;
  private final int destinations;

  Sequence(long pointer, Geometry geometry, int queryRows, boolean headsDiffer, int listCount,
      Hooks hooks) {
    super(pointer, Native::kvevict_sequence_destroy, hooks);
    this.geometry = geometry;
    this.queryRows = queryRows;
    this.headsDiffer = headsDiffer;
    this.listCount = listCount;
    this.hooks = hooks;
    device = hooks.device;
    int n = geometry.layerCount();
    inputs = OBSERVATIONS + n * Abi.Observation.SIZEOF;
    planes = inputs + n * Abi.SignalInputs.SIZEOF;
    views = planes + n * SignalInputs.PLANES;
    destinations = views + n * Abi.View.SIZEOF;
    arguments = new Struct(destinations + n * Abi.View.SIZEOF);
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
   * @param memory the workspace of {@link Operation#OBSERVE}; direct
   */
  public void beginObserving(ByteBuffer memory) {
    Memory.requireCpu(device, "memory");
    beginObserving(Memory.address(memory, "memory"), Memory.bytes(memory));
    lent = memory;
  }

  /**
   * Keeps query rows in memory of the caller's until {@link #endObserving}.
   *
   * @param memory address of the workspace of {@link Operation#OBSERVE}; 0 with 0 bytes: of the
   *     context's
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
   * A sequence that goes on from where this one is: positions, lengths, and, if this one observes,
   * the queries, in memory of the context. The cache is the caller's to copy or to share.
   *
   * @return the new sequence, of the same plan
   */
  public Sequence fork() {
    return fork(0, 0, 0);
  }

  /**
   * A sequence that goes on from where this one is, with the queries in memory of the caller's, on
   * the CPU.
   *
   * @param memory see {@link #beginObserving(ByteBuffer)}
   * @return the new sequence, of the same plan
   */
  public Sequence fork(ByteBuffer memory) {
    Memory.requireCpu(device, "memory");
    Sequence fork = fork(Memory.address(memory, "memory"), Memory.bytes(memory), 0);
    fork.lent = memory;
    return fork;
  }

  /**
   * A sequence that goes on from where this one is.
   *
   * @param memory see {@link #beginObserving(long, long)}; not used if this one does not observe
   * @param memoryBytes its bytes
   * @param stream a CUstream, after this one's work; ignored on the CPU
   * @return the new sequence, of the same plan
   */
  public Sequence fork(long memory, long memoryBytes, long stream) {
    return new Sequence(fork(0, memory, memoryBytes, stream), geometry, queryRows, headsDiffer,
        listCount, hooks);
  }

  /**
   * A sequence that goes on from where this one is under another plan, with another policy.
   *
   * @param plan a plan with the same context and layers
   * @return the new sequence, with query memory of the context if it has the queries
   */
  public Sequence fork(Plan plan) {
    return fork(plan, 0, 0, 0);
  }

  /**
   * A sequence that goes on from where this one is under another plan, with another policy. Observed
   * queries go along where both plans have a window as wide. On CUDA this waits.
   *
   * @param plan a plan with the same context and layers
   * @param memory see {@link #beginObserving(long, long)}; not used if the new one does not
   *     observe
   * @param memoryBytes its bytes
   * @param stream a CUstream, after this one's work; ignored on the CPU
   * @return the new sequence
   */
  public Sequence fork(Plan plan, long memory, long memoryBytes, long stream) {
    long pointer = plan.enter();
    try {
      return plan.newSequence(fork(pointer, memory, memoryBytes, stream));
    } finally {
      plan.leave();
    }
  }

  private long fork(long plan, long memory, long memoryBytes, long stream) {
    long sequence = enterAlone();
    try (Struct options = Struct.sized(Abi.ForkOptions.SIZEOF)) {
      options.putLong(Abi.ForkOptions.PLAN, plan)
          .putLong(Abi.ForkOptions.MEMORY, memory)
          .putLong(Abi.ForkOptions.MEMORY_BYTES, memoryBytes);
      return Native.kvevict_sequence_fork(sequence, options.address, stream);
    } finally {
      leave();
    }
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
   * Shows a layer's query rows of one chunk; the rows of the window are remembered. Showing earlier
   * positions again replaces them and forgets what came after (rollback).
   *
   * @param layer the layer
   * @param queries [queryHeads, rowCount] rows, after RoPE; copied
   * @param rowCount 0 does nothing
   * @param firstPosition position of row 0, or {@link #POSITION_NEXT}
   */
  public void observe(int layer, Plane queries, int rowCount, int firstPosition) {
    observe(layer, SignalInputs.NONE.withQueries(Objects.requireNonNull(queries, "queries")), rowCount,
        firstPosition, 0);
  }

  /**
   * Shows a layer's query rows of one chunk, their log-sum-exps, or both; the rows of the window are
   * remembered. Showing earlier positions again replaces them and forgets what came after
   * (rollback). Or the attention that the rows paid, which is added up: of rows that follow on those
   * observed before.
   *
   * @param layer the layer
   * @param shown rowCount rows; copied. Log-sum-exps may come with the queries or after them
   * @param rowCount 0 does nothing
   * @param firstPosition position of row 0, or {@link #POSITION_NEXT}
   * @param stream a CUstream; ignored on the CPU
   */
  public void observe(
      int layer, SignalInputs shown, int rowCount, int firstPosition, long stream) {
    Memory.count(rowCount, "rowCount");
    long sequence = enterAlone();
    try {
      writeObservation(sequence, 0, layer, shown, rowCount, firstPosition);
      observe(sequence, 1, rowCount, firstPosition, stream);
    } finally {
      leave();
      Reference.reachabilityFence(arguments);
      Reference.reachabilityFence(shown);
    }
  }

  /**
   * Shows the query rows of one chunk in every layer: those of all layers or, if one is refused, of
   * none.
   *
   * @param layers what each layer shows; null for nothing, as for layers without a full
   *     cache
   * @param rowCount rows of each layer; 0 does nothing
   * @param firstPosition position of row 0, or {@link #POSITION_NEXT}
   */
  public void observe(List<SignalInputs> layers, int rowCount, int firstPosition) {
    observe(layers, rowCount, firstPosition, 0);
  }

  /**
   * Shows the query rows of one chunk in every layer: those of all layers or, if one is refused, of
   * none. On CUDA neighbouring layers whose planes lie alike take one launch.
   *
   * @param layers what each layer shows; null for nothing, as for layers without a full
   *     cache
   * @param rowCount rows of each layer; 0 does nothing
   * @param firstPosition position of row 0, or {@link #POSITION_NEXT}
   * @param stream a CUstream; ignored on the CPU
   */
  public void observe(List<SignalInputs> layers, int rowCount, int firstPosition, long stream) {
    SignalInputs[] shown = layers.toArray(new SignalInputs[0]);
    long sequence = enterAlone();
    try {
      int n = writeObservations(sequence, shown, rowCount, firstPosition);
      observe(sequence, n, rowCount, firstPosition, stream);
    } finally {
      leave();
      Reference.reachabilityFence(arguments);
      Reference.reachabilityFence(shown);
    }
  }

  /** Returns the number of layers. */
  private int writeObservations(
      long sequence, SignalInputs[] shown, int rowCount, int firstPosition) {
    Memory.count(rowCount, "rowCount");
    if (shown.length != geometry.layerCount()) {
      throw new IllegalArgumentException(
          shown.length + " inputs for " + geometry.layerCount() + " layers");
    }
    int n = 0;
    for (int layer = 0; layer < shown.length; ++layer) {
      if (shown[layer] != null) {
        writeObservation(sequence, n++, layer, shown[layer], rowCount, firstPosition);
      }
    }
    return n;
  }

  /** Writes an item of a batch, with the pointer that enterAlone() returned. */
  void writeItem(Struct out, int at, long sequence, SignalInputs[] shown, int rowCount,
      int firstPosition) {
    int n = writeObservations(sequence, shown, rowCount, firstPosition);
    out.putInt(at + Abi.SequenceObservations.STRUCT_SIZE, Abi.SequenceObservations.SIZEOF)
        .putInt(at + Abi.SequenceObservations.N_ROWS, rowCount)
        .putLong(at + Abi.SequenceObservations.SEQUENCE, sequence)
        .putLong(at + Abi.SequenceObservations.OBSERVATIONS, arguments.address + OBSERVATIONS)
        .putLong(at + Abi.SequenceObservations.OBSERVATIONS_LEN, n)
        .putInt(at + Abi.SequenceObservations.FIRST_POSITION, firstPosition);
  }

  private void writeObservation(
      long sequence, int i, int layer, SignalInputs shown, int rowCount, int firstPosition) {
    LayerGeometry shape = geometry.evicted(layer);
    shown.requireRows(rowCount, shape, layer);
    if (shown.hasSums() && shape.kvHeads() > 0) {
      shown.requireSlots(heldWith(sequence, layer, shape, rowCount, firstPosition), shape, layer);
    }
    int at = OBSERVATIONS + i * Abi.Observation.SIZEOF;
    arguments.putInt(at + Abi.Observation.STRUCT_SIZE, Abi.Observation.SIZEOF)
        .putInt(at + Abi.Observation.LAYER, layer)
        .putLong(at + Abi.Observation.INPUTS, writeInputs(i, shown));
  }

  private void observe(long sequence, int n, int rowCount, int firstPosition, long stream) {
    Native.kvevict_sequence_observe(
        sequence, arguments.address + OBSERVATIONS, n, rowCount, firstPosition, stream);
  }

  /** Slots of a layer once rows from a position on are stored, or 0 where C refuses them. */
  private int heldWith(
      long sequence, int layer, LayerGeometry shape, int rowCount, int firstPosition) {
    long ahead =
        firstPosition == POSITION_NEXT
            ? 0
            : Integer.toUnsignedLong(firstPosition)
                - Native.kvevict_sequence_logical_length(sequence);
    int most = IntStream.of(storedLengths(sequence, layer, shape)).max().getAsInt();
    return (int) Math.max(0, Math.min(most + ahead + rowCount, Integer.MAX_VALUE));
  }

  /** Returns the inputs' address. */
  private long writeInputs(int i, SignalInputs written) {
    int at = inputs + i * Abi.SignalInputs.SIZEOF;
    written.write(arguments, at, planes + i * SignalInputs.PLANES);
    return arguments.address + at;
  }

  /**
   * Notes that the engine stored more rows in every layer, each at the layer's next slot and with
   * the next positions.
   *
   * @param tokenCount the number of tokens
   */
  public void append(int tokenCount) {
    append(tokenCount, 0);
  }

  /**
   * Notes that the engine stored more rows in every layer, each at the layer's next slot and with
   * the next positions.
   *
   * @param tokenCount the number of tokens
   * @param stream a CUstream; ignored on the CPU
   */
  public void append(int tokenCount, long stream) {
    Memory.count(tokenCount, "tokenCount");
    long sequence = enterAlone();
    try {
      Native.kvevict_sequence_append(sequence, tokenCount, stream);
    } finally {
      leave();
    }
  }

  /** Says that what has been appended so far is the prompt. */
  public void endPrompt() {
    long sequence = enterAlone();
    try {
      Native.kvevict_sequence_end_prompt(sequence);
    } finally {
      leave();
    }
  }

  /**
   * Notes on the host that a graph ran once more which observed and appended.
   *
   * @param tokenCount the number of tokens
   */
  public void replayed(int tokenCount) {
    Memory.count(tokenCount, "tokenCount");
    long sequence = enterAlone();
    try {
      Native.kvevict_sequence_replayed(sequence, tokenCount);
    } finally {
      leave();
    }
  }

  /**
   * Takes back the last tokens, for example rejected speculation. Exact down to the logical length
   * at the last eviction, and to lengths up to {@link #exactPrefix}; no cache byte changes. Of a
   * policy that scores by the last queries {@link PlanOptions#withDraftTokens} tokens may be taken
   * back before each eviction; after more some queries have to be observed again.
   *
   * @param newLength the logical length to return to
   */
  public void trimTo(int newLength) {
    trimTo(newLength, 0);
  }

  /**
   * Does the same on a stream.
   *
   * @param newLength the logical length to return to
   * @param stream a CUstream; ignored on the CPU
   */
  public void trimTo(int newLength, long stream) {
    Memory.count(newLength, "newLength");
    long sequence = enterAlone();
    try {
      Native.kvevict_sequence_trim_to(sequence, newLength, stream);
    } finally {
      leave();
    }
  }

  /**
   * Scores, selects and compacts the cache of a whole model in place, on the CPU.
   *
   * @param views one per layer; null for layers without a full cache
   * @param workspace scratch for {@link Operation#EVICT}
   * @return what was done
   */
  public EvictReport evict(List<View> views, ByteBuffer workspace) {
    return evict(views, EvictOptions.NONE, workspace);
  }

  /**
   * Scores, selects and compacts the cache of a whole model in place, on the CPU.
   *
   * @param views one per layer; null for layers without a full cache
   * @param options protected positions, scores, queries
   * @param workspace scratch for {@link Operation#EVICT}
   * @return what was done
   */
  public EvictReport evict(List<View> views, EvictOptions options, ByteBuffer workspace) {
    EvictReport report = evict(views, options, Memory.workspace(device, workspace),
        Memory.workspaceBytes(workspace), 0);
    Reference.reachabilityFence(workspace);
    return report;
  }

  /**
   * Scores, selects and compacts the cache of a whole model in place. Every check is made before
   * the first byte moves. Afterwards the next token goes to slot {@link #storedLength} with position
   * {@link #logicalLength}.
   *
   * @param views one per layer; null for layers without a full cache
   * @param options protected positions, scores, queries
   * @param workspace address of scratch for {@link Operation#EVICT}
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   * @return what was done
   */
  public EvictReport evict(List<View> views, EvictOptions options, long workspace,
      long workspaceBytes, long stream) {
    long sequence = enterAlone();
    View.Content[] caches = null;
    try {
      caches = writeEviction(sequence, views, options);
      long base = arguments.address;
      Native.kvevict_sequence_evict(
          sequence, base + this.views, views.size(), base, workspace, workspaceBytes, stream);
      return report(sequence);
    } finally {
      leave();
      Reference.reachabilityFence(arguments);
      Reference.reachabilityFence(options);
      Reference.reachabilityFence(caches);
    }
  }

  /**
   * Reads a prompt in chunks, on the CPU: of each the model, append and, where it is due, evict; at
   * the end endPrompt.
   *
   * @param prompt the prompt and how to read it
   * @param views one per layer, read again behind each chunk; null for layers without a full cache
   * @param workspace scratch for {@link Operation#EVICT}
   * @return what the prefill took
   */
  public PrefillReport prefill(Prefill prompt, List<View> views, ByteBuffer workspace) {
    PrefillReport report = prefill(prompt, views, Memory.workspace(device, workspace),
        Memory.workspaceBytes(workspace), 0);
    Reference.reachabilityFence(workspace);
    return report;
  }

  /**
   * Reads a prompt in chunks: of each the model, append and, where it is due, evict; at the end
   * endPrompt. Where the model throws, the chunks before stay appended, and the call may be made again
   * for the rest.
   *
   * @param prompt the prompt and how to read it
   * @param views one per layer, read again behind each chunk; null for layers without a full cache
   * @param workspace address of scratch for {@link Operation#EVICT}
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   * @return what the prefill took
   */
  public PrefillReport prefill(Prefill prompt, List<View> views, long workspace,
      long workspaceBytes, long stream) {
    long sequence = enterToRead();
    try (Struct options = Struct.sized(Abi.PrefillOptions.SIZEOF)) {
      options.putLong(Abi.PrefillOptions.VIEWS, arguments.address + this.views)
          .putLong(Abi.PrefillOptions.VIEWS_LEN, requireViews(views))
          .putLong(Abi.PrefillOptions.EVICT, arguments.address)
          .putLong(Abi.PrefillOptions.WORKSPACE, workspace)
          .putLong(Abi.PrefillOptions.WORKSPACE_BYTES, workspaceBytes);
      return new Reading(prompt, (told, ahead) -> writeAhead(
          ahead, () -> writeEviction(sequence, views, told)), this).run(sequence, options, stream);
    } finally {
      leave();
      Reference.reachabilityFence(arguments);
    }
  }

  /** Does the same into blocks. */
  PrefillReport prefill(Prefill prompt, PagedSequence cached, long workspace,
      long workspaceBytes, long stream) {
    long sequence = enterToRead();
    try {
      long rows = cached.enterAlone();
      try (Struct options = Struct.sized(Abi.PrefillOptions.SIZEOF)) {
        options.putLong(Abi.PrefillOptions.CACHED, rows)
            .putLong(Abi.PrefillOptions.EVICT, arguments.address)
            .putLong(Abi.PrefillOptions.WORKSPACE, workspace)
            .putLong(Abi.PrefillOptions.WORKSPACE_BYTES, workspaceBytes);
        return new Reading(prompt, (told, ahead) -> writeAhead(ahead, () -> {
          writePagedEviction(sequence, told);
          return told;
        }), this, cached).run(sequence, options, stream);
      } finally {
        cached.leave();
      }
    } finally {
      leave();
      Reference.reachabilityFence(arguments);
    }
  }

  private long enterToRead() {
    long sequence = enterAlone();
    if (isLent()) {
      leave();
      throw new IllegalStateException("this Sequence reads a prompt already");
    }
    return sequence;
  }

  /** Writes arguments that are read once so many more rows are stored. */
  private Object writeAhead(int n, Supplier<Object> write) {
    ahead = n;
    try {
      return write.get();
    } finally {
      ahead = 0;
    }
  }

  private int requireViews(List<View> views) {
    if (views.size() != geometry.layerCount()) {
      throw new IllegalArgumentException(
          views.size() + " views for " + geometry.layerCount() + " layers");
    }
    return views.size();
  }

  /** Writes views, of at least so many slots, and keeps their memory. */
  private View.Content[] writeViews(List<View> views, int slots) {
    View.Content[] caches = new View.Content[requireViews(views)];
    for (int layer = 0; layer < caches.length; ++layer) {
      int view = this.views + layer * Abi.View.SIZEOF;
      if (geometry.evicted(layer).cache() != LayerCache.FULL) {
        arguments.putInt(view + Abi.View.STRUCT_SIZE, Abi.View.SIZEOF);
        continue;
      }
      View.Content cache = View.at(views, layer, "views").content(device);
      cache.require(slots, head -> slots);
      cache.requireWritable();
      arguments.copyFrom(cache.struct, view);
      caches[layer] = cache;
    }
    return caches;
  }

  /** The most slots that any layer holds, or would hold had nothing been evicted. */
  private int mostSlots(long sequence) {
    return Math.min(geometry.maxTokens(), Native.kvevict_sequence_logical_length(sequence));
  }

  /**
   * How many slots an eviction now would leave in each layer's longest list, for which a
   * destination needs room. If scores decide how many, it is what the layer holds.
   *
   * @param views one per layer; null for layers without a full cache
   * @return slots of each layer; 0 without a full cache
   */
  public int[] keptSlots(List<View> views) {
    View.Content[] caches = null;
    long sequence = enterAlone();
    try {
      caches = writeViews(views, 0);
      return keptSlots(sequence);
    } finally {
      leave();
      Reference.reachabilityFence(arguments);
      Reference.reachabilityFence(caches);
    }
  }

  /**
   * The undo memory that an eviction would need now. Policies that merge or rotate cannot be
   * undone.
   *
   * @param views one per layer; null for layers without a full cache
   * @return bytes; 0 where it would leave every layer alone
   */
  public long undoBytes(List<View> views) {
    View.Content[] caches = null;
    long sequence = enterAlone();
    try {
      caches = writeViews(views, 0);
      return Native.kvevict_sequence_undo_bytes(
          sequence, arguments.address + this.views, caches.length);
    } finally {
      leave();
      Reference.reachabilityFence(arguments);
      Reference.reachabilityFence(caches);
    }
  }

  /**
   * Takes back the last eviction, on the CPU.
   *
   * @param views the eviction's views, with room for what comes back
   * @param undo what {@link EvictOptions#withUndo(ByteBuffer)} lent, as the eviction left it; direct
   */
  public void undo(List<View> views, ByteBuffer undo) {
    Memory.requireCpu(device, "undo");
    undo(views, Memory.address(undo, "undo"), Memory.bytes(undo), 0);
    Reference.reachabilityFence(undo);
  }

  /**
   * Takes back the last eviction, whose rows {@link EvictOptions#withUndo(long, long)} received: they
   * stand again where they stood, and positions and lengths are as before it. What was appended
   * since stays, behind them; trim first what is not wanted. It works once, until the next eviction
   * that evicts, a reset, a load, or a trim to before.
   *
   * @param views the eviction's views, each with rows for as many slots as a layer may hold, or for the
   *     logical length if that is less
   * @param undo address of what the eviction left, or of a copy
   * @param undoBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   */
  public void undo(List<View> views, long undo, long undoBytes, long stream) {
    View.Content[] caches = null;
    long sequence = enterAlone();
    try {
      caches = writeViews(views, mostSlots(sequence));
      Native.kvevict_sequence_undo(sequence, arguments.address + this.views, caches.length, undo,
          undoBytes, stream);
    } finally {
      leave();
      Reference.reachabilityFence(arguments);
      Reference.reachabilityFence(caches);
    }
  }

  /** Returns the caches, which must stay reachable, as must the options. */
  private View.Content[] writeEviction(long sequence, List<View> views, EvictOptions options) {
    int n = requireViews(views);
    options.requireLayers(n);
    options.requireOn(device);
    View.Content[] caches = new View.Content[n];
    for (int layer = 0; layer < n; ++layer) {
      LayerGeometry shape = geometry.evicted(layer);
      SignalInputs read = options.inputs(layer);
      read.requireRows(read.queryRows(queryRows, 0), shape, layer);
      writeInputs(layer, read);
      int view = this.views + layer * Abi.View.SIZEOF;
      if (shape.cache() != LayerCache.FULL) {
        arguments.putInt(view + Abi.View.STRUCT_SIZE, Abi.View.SIZEOF);
        continue;
      }
      View.Content cache = View.at(views, layer, "views").content(device);
      if (read.hasSlots(queryRows) || !cache.holds(geometry.maxTokens())) {
        int[] stored = storedLengths(sequence, layer, shape);
        int most = IntStream.of(stored).max().getAsInt();
        read.requireSlots(most, shape, layer);
        read.requireRows(read.queryRows(queryRows, most), shape, layer);
        cache.require(most, head -> stored[Math.min(head, stored.length - 1)]);
      }
      cache.requireWritable();
      if (options.isByTable()) {
        cache.requireWritableTables();
      }
      arguments.copyFrom(cache.struct, view);
      caches[layer] = cache;
    }
    options.write(arguments, arguments.address + inputs, arguments.address + destinations);
    return withDestinations(sequence, caches, options.destinations());
  }

  /** Writes destinations, if there are any, with room for what is kept; returns their caches too. */
  private View.Content[] withDestinations(
      long sequence, View.Content[] caches, List<View> there) {
    if (there.isEmpty()) {
      return caches;
    }
    int n = caches.length;
    if (there.size() != n) {
      throw new IllegalArgumentException(there.size() + " destinations for " + n + " layers");
    }
    int[] kept = keptSlots(sequence);
    View.Content[] all = Arrays.copyOf(caches, 2 * n);
    for (int layer = 0; layer < n; ++layer) {
      int view = destinations + layer * Abi.View.SIZEOF;
      if (geometry.evicted(layer).cache() != LayerCache.FULL) {
        arguments.putInt(view + Abi.View.STRUCT_SIZE, Abi.View.SIZEOF);
        continue;
      }
      View.Content cache = View.at(there, layer, "destinations").content(device);
      int slots = kept[layer];
      cache.require(slots, head -> slots);
      cache.requireWritable();
      arguments.copyFrom(cache.struct, view);
      all[n + layer] = cache;
    }
    return all;
  }

  /** The caches of the views that are written. */
  private int[] keptSlots(long sequence) {
    int n = geometry.layerCount();
    try (Struct slots = new Struct(4 * n)) {
      Native.kvevict_sequence_kept_slots(
          sequence, arguments.address + views, n, slots.address, n);
      return IntStream.range(0, n).map(layer -> slots.intAt(4 * layer)).toArray();
    }
  }

  /** Writes an item of a batch; returns what must stay reachable beside the options. */
  View.Content[] writeItem(
      Struct out, int at, long sequence, List<View> views, EvictOptions options) {
    View.Content[] caches = writeEviction(sequence, views, options);
    out.putInt(at + Abi.SequenceEviction.STRUCT_SIZE, Abi.SequenceEviction.SIZEOF)
        .putLong(at + Abi.SequenceEviction.SEQUENCE, sequence)
        .putLong(at + Abi.SequenceEviction.VIEWS, arguments.address + this.views)
        .putLong(at + Abi.SequenceEviction.VIEWS_LEN, views.size())
        .putLong(at + Abi.SequenceEviction.OPTIONS, arguments.address);
    return caches;
  }

  /** Writes an item of paged caches; the options are to be kept reachable. */
  void writeItem(Struct out, int at, long cached, long sequence, EvictOptions options) {
    writePagedEviction(sequence, options);
    out.putInt(at + Abi.PagedEviction.STRUCT_SIZE, Abi.PagedEviction.SIZEOF)
        .putLong(at + Abi.PagedEviction.CACHED, cached)
        .putLong(at + Abi.PagedEviction.SEQUENCE, sequence)
        .putLong(at + Abi.PagedEviction.OPTIONS, arguments.address);
  }

  private void writePagedEviction(long sequence, EvictOptions options) {
    int n = geometry.layerCount();
    options.requireLayers(n);
    options.requireOn(device);
    for (int layer = 0; layer < n; ++layer) {
      LayerGeometry shape = geometry.evicted(layer);
      SignalInputs read = options.inputs(layer);
      read.requireRows(read.queryRows(queryRows, 0), shape, layer);
      writeInputs(layer, read);
      if (shape.cache() == LayerCache.FULL && read.hasSlots(queryRows)) {
        int most = IntStream.of(storedLengths(sequence, layer, shape)).max().getAsInt();
        read.requireSlots(most, shape, layer);
        read.requireRows(read.queryRows(queryRows, most), shape, layer);
      }
    }
    options.requireInPlace();
    options.write(arguments, arguments.address + inputs, 0);
  }

  /** The device of its context. */
  Device device() {
    return device;
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
      Reference.reachabilityFence(arguments);
    }
  }

  EvictReport report(long sequence) {
    arguments.putInt(REPORT + Abi.EvictReport.STRUCT_SIZE, Abi.EvictReport.SIZEOF);
    Native.kvevict_sequence_report(sequence, arguments.address + REPORT, 0, 0);
    return Records.EvictReport.read(arguments, REPORT);
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

  /** Slots in use by each head of a layer, or by all where they do not differ. */
  private int[] storedLengths(long sequence, int layer, LayerGeometry shape) {
    int[] stored = new int[headsDiffer ? shape.kvHeads() : 1];
    Arrays.setAll(
        stored, head -> Native.kvevict_sequence_stored_length(sequence, layer, head) + ahead);
    return stored;
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
