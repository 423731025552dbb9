package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Objects;

/**
 * What one request carries between steps: the position of every slot, stored and logical length,
 * and, while it observes, the last queries of every layer. One thread at a time; a second one gets
 * an IllegalStateException. On CUDA its work must have run when it is closed or becomes unreachable.
 */
public final class Sequence extends SequenceState {
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

  private final SequenceArguments arguments;

  /** Keeps memory that was lent for query rows reachable. */
  private ByteBuffer lent;

  Sequence(long pointer, Geometry geometry, int queryRows, boolean headsDiffer, int listCount,
      Hooks hooks) {
    super(pointer, listCount, hooks);
    this.geometry = geometry;
    this.queryRows = queryRows;
    this.headsDiffer = headsDiffer;
    this.listCount = listCount;
    this.hooks = hooks;
    device = hooks.device;
    arguments = new SequenceArguments(geometry, queryRows, headsDiffer, device);
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
   * observed before. Or, for the policy custom, the scores of the chunk's tokens, which then live
   * with their slots.
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
      arguments.observation(sequence, 0, layer, shown, rowCount, firstPosition);
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
      int n = arguments.observations(sequence, shown, rowCount, firstPosition);
      observe(sequence, n, rowCount, firstPosition, stream);
    } finally {
      leave();
      Reference.reachabilityFence(arguments);
      Reference.reachabilityFence(shown);
    }
  }

  private void observe(long sequence, int n, int rowCount, int firstPosition, long stream) {
    Native.kvevict_sequence_observe(
        sequence, arguments.observations(), n, rowCount, firstPosition, stream);
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
      caches = arguments.eviction(sequence, views, options);
      Native.kvevict_sequence_evict(sequence, arguments.views(), views.size(),
          arguments.options(), workspace, workspaceBytes, stream);
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
      options.putLong(Abi.PrefillOptions.VIEWS, arguments.views())
          .putLong(Abi.PrefillOptions.VIEWS_LEN, arguments.requireViews(views))
          .putLong(Abi.PrefillOptions.EVICT, arguments.options())
          .putLong(Abi.PrefillOptions.WORKSPACE, workspace)
          .putLong(Abi.PrefillOptions.WORKSPACE_BYTES, workspaceBytes);
      return new Reading(prompt, (told, ahead) -> arguments.ahead(
          ahead, () -> arguments.eviction(sequence, views, told)), this).run(sequence, options, stream);
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
            .putLong(Abi.PrefillOptions.EVICT, arguments.options())
            .putLong(Abi.PrefillOptions.WORKSPACE, workspace)
            .putLong(Abi.PrefillOptions.WORKSPACE_BYTES, workspaceBytes);
        return new Reading(prompt, (told, ahead) -> arguments.ahead(ahead, () -> {
          arguments.pagedEviction(sequence, told);
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
      caches = arguments.views(views, 0);
      return arguments.keptSlots(sequence);
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
      caches = arguments.views(views, 0);
      return Native.kvevict_sequence_undo_bytes(
          sequence, arguments.views(), caches.length);
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
      caches = arguments.views(views, mostSlots(sequence));
      Native.kvevict_sequence_undo(sequence, arguments.views(), caches.length, undo,
          undoBytes, stream);
    } finally {
      leave();
      Reference.reachabilityFence(arguments);
      Reference.reachabilityFence(caches);
    }
  }

  /**
   * Edits the middle on the CPU, or on the default stream of CUDA.
   *
   * @param views see the other overload
   * @param edit what changes
   */
  public void edit(List<View> views, Edit edit) {
    edit(views, edit, 0);
  }

  /**
   * Removes, replaces, inserts or moves tokens in the middle. Rows move to their new slots in every layer
   * with a full cache, and keys rotate by as many positions as their tokens move. Tokens that were evicted
   * stay so. Keys and values behind the edit still remember the old text; only {@link #exactPrefix}
   * tokens are as if it had always been the new one. Make room in the views, call, then write the rows of
   * new tokens, in each layer and head from the slot of the span's first position on. This allocates,
   * and waits for the stream. The last eviction cannot be undone any more. An exception with another
   * status than {@link Status#DEVICE} has changed nothing.
   *
   * @param views one per layer, with room for all slots held before and after; null for layers without a
   *     full cache
   * @param edit what changes
   * @param stream a CUstream; ignored on the CPU
   */
  public void edit(List<View> views, Edit edit, long stream) {
    View.Content[] caches = null;
    long sequence = enterAlone();
    try (Struct in = edit.write()) {
      caches = arguments.views(sequence, views, edit);
      Native.kvevict_sequence_edit(sequence, arguments.views(), caches.length, in.address, stream);
    } finally {
      leave();
      Reference.reachabilityFence(arguments);
      Reference.reachabilityFence(caches);
    }
  }

  /** Memory for a call that has entered this. */
  SequenceArguments arguments() {
    return arguments;
  }

  /** The device of its context. */
  Device device() {
    return device;
  }
}
