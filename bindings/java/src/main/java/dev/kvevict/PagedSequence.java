package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.util.List;

/**
 * The blocks of one request, which close() gives back. A call that needs more blocks than are free
 * fails and has changed nothing. One thread at a time; a second one gets an IllegalStateException. On
 * CUDA the sequences of one cache use one stream, or are ordered by the caller.
 */
public final class PagedSequence extends Handle {
  private final PagedCache.Shared shared;

  PagedSequence(long pointer, PagedCache.Shared shared) {
    super(pointer, Native::kvevict_paged_sequence_destroy, shared);
    this.shared = shared;
  }

  /**
   * Adds a sequence that holds what this one does, in the same blocks: to share a prefix, to part
   * beams, or to keep what an eviction of one of the two drops.
   *
   * @return the new sequence
   */
  public PagedSequence fork() {
    return fork(0);
  }

  /**
   * Adds a sequence that holds what this one does, in the same blocks.
   *
   * @param stream a CUstream; ignored on the CPU
   * @return the new sequence
   */
  public PagedSequence fork(long stream) {
    long sequence = enterAlone();
    try {
      return new PagedSequence(Native.kvevict_paged_sequence_fork(sequence, stream), shared);
    } finally {
      leave();
    }
  }

  /**
   * Makes room for tokens behind the last one, in every layer. Their rows have any content.
   *
   * @param tokenCount the number of tokens
   */
  public void append(int tokenCount) {
    append(tokenCount, 0);
  }

  /**
   * Makes room for tokens behind the last one, in every layer. Their rows have any content.
   *
   * @param tokenCount the number of tokens
   * @param stream a CUstream; ignored on the CPU
   */
  public void append(int tokenCount, long stream) {
    Memory.count(tokenCount, "tokenCount");
    long sequence = enterAlone();
    try {
      Native.kvevict_paged_sequence_append(sequence, tokenCount, stream);
    } finally {
      leave();
    }
  }

  /**
   * Drops the last tokens of layers that hold more than so many.
   *
   * @param newLength what each layer holds at most from now on
   */
  public void truncate(int newLength) {
    Memory.count(newLength, "newLength");
    long sequence = enterAlone();
    try {
      Native.kvevict_paged_sequence_truncate(sequence, newLength);
    } finally {
      leave();
    }
  }

  /**
   * Drops the last rows of each layer that a sequence of positions stores no longer: after its trim or
   * reset, or an eviction by views.
   *
   * @param stored a sequence of a plan with the cache's geometry
   */
  public void fit(Sequence stored) {
    long sequence = enterAlone();
    try {
      long positions = stored.enterAlone();
      try {
        Native.kvevict_paged_sequence_fit(sequence, positions);
      } finally {
        stored.leave();
      }
    } finally {
      leave();
    }
  }

  /**
   * The rows that a layer holds.
   *
   * @param layer one with a full cache
   * @return slots
   */
  public int length(int layer) {
    long sequence = enterAlone();
    try {
      return Native.kvevict_paged_sequence_length(sequence, layer);
    } finally {
      leave();
    }
  }

  /**
   * A layer's rows, right until a call changes the sequence, and until it is closed. To write to
   * blocks that other sequences share is to write to theirs: see {@link #own}.
   *
   * @param layer one with a full cache
   * @return the view, which keeps this reachable
   */
  public View view(int layer) {
    long sequence = enterAlone();
    try (Struct out = Struct.sized(Abi.View.SIZEOF)) {
      Native.kvevict_paged_sequence_view(sequence, layer, out.address);
      View.Builder view = View.builder(out.intAt(Abi.View.N_KV_HEADS));
      int n = out.intAt(Abi.View.N_COMPANIONS);
      Struct companions = Struct.copyOf(out.longAt(Abi.View.COMPANIONS), n * Abi.Plane.SIZEOF);
      for (int i = 0; i < n; ++i) {
        view.companion(Plane.read(companions, i * Abi.Plane.SIZEOF));
      }
      return view
          .k(Plane.read(out, Abi.View.K))
          .v(Plane.read(out, Abi.View.V))
          .paged(out.intAt(Abi.View.BLOCK_SIZE), out.longAt(Abi.View.BLOCK_TABLE),
              out.longAt(Abi.View.BLOCK_TABLE_LEN))
          .firstRecent(out.intAt(Abi.View.FIRST_RECENT))
          .owner(this)
          .build();
    } finally {
      leave();
    }
  }

  /**
   * Copies those blocks of all layers that others share and that hold slots from one on, so that they
   * may be written through views.
   *
   * @param firstSlot 0: all
   */
  public void own(int firstSlot) {
    own(firstSlot, 0);
  }

  /**
   * Copies those blocks of all layers that others share and that hold slots from one on.
   *
   * @param firstSlot 0: all
   * @param stream a CUstream; ignored on the CPU
   */
  public void own(int firstSlot, long stream) {
    Memory.count(firstSlot, "firstSlot");
    long sequence = enterAlone();
    try {
      Native.kvevict_paged_sequence_own(sequence, firstSlot, stream);
    } finally {
      leave();
    }
  }

  /**
   * Copies rows into slots that layers hold; blocks that others share are copied first. All is checked
   * before the first row is written.
   *
   * @param rows a layer may come up more than once
   */
  public void write(List<PagedRows> rows) {
    write(rows, 0);
  }

  /**
   * Copies rows into slots that layers hold. Their memory is read when the stream comes to it.
   *
   * @param rows a layer may come up more than once
   * @param stream a CUstream; ignored on the CPU
   */
  public void write(List<PagedRows> rows, long stream) {
    copy(rows, false, stream, Native::kvevict_paged_sequence_write);
  }

  /**
   * Copies rows out of the slots of layers into the planes.
   *
   * @param rows a layer may come up more than once
   */
  public void read(List<PagedRows> rows) {
    read(rows, 0);
  }

  /**
   * Copies rows out of the slots of layers into the planes.
   *
   * @param rows a layer may come up more than once
   * @param stream a CUstream; ignored on the CPU
   */
  public void read(List<PagedRows> rows, long stream) {
    copy(rows, true, stream, Native::kvevict_paged_sequence_read);
  }

  private interface Copy {
    void of(long sequence, long rows, long n, long stream);
  }

  private void copy(List<PagedRows> rows, boolean isRead, long stream, Copy call) {
    int size = Abi.PagedRows.SIZEOF;
    long sequence = enterAlone();
    try (Struct in = new Struct(rows.size() * size)) {
      for (int i = 0; i < rows.size(); ++i) {
        rows.get(i).write(shared.geometry(), isRead, in, i * size);
      }
      call.of(sequence, in.address, rows.size(), stream);
    } finally {
      leave();
      Reference.reachabilityFence(rows);
    }
  }

  /**
   * Evicts as {@link Sequence#evict} does and gives emptied blocks back, on the CPU. Blocks that others
   * share are copied where survivors move to them; the others hold theirs unchanged.
   *
   * @param sequence the tokens that the rows belong to
   * @param options no undo: a fork made before keeps what goes
   * @param workspace scratch for {@link Operation#EVICT}
   * @return what was done
   */
  public EvictReport evict(Sequence sequence, EvictOptions options, ByteBuffer workspace) {
    return Batch.evictPaged(List.of(
        Batch.PagedEviction.of(this, sequence).withOptions(options)), workspace).get(0);
  }

  /**
   * Evicts as {@link Sequence#evict} does and gives emptied blocks back.
   *
   * @param sequence the tokens that the rows belong to
   * @param options no undo: a fork made before keeps what goes
   * @param workspace address of scratch for {@link Operation#EVICT}
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   * @return what was done
   */
  public EvictReport evict(Sequence sequence, EvictOptions options, long workspace,
      long workspaceBytes, long stream) {
    return Batch.evictPaged(List.of(Batch.PagedEviction.of(this, sequence).withOptions(options)),
        workspace, workspaceBytes, stream).get(0);
  }

  /**
   * Edits the middle as {@link Sequence#edit} does, on the CPU or on the default stream of CUDA.
   *
   * @param sequence the tokens that the rows belong to
   * @param edit what changes
   */
  public void edit(Sequence sequence, Edit edit) {
    edit(sequence, edit, 0);
  }

  /**
   * Edits the middle as {@link Sequence#edit} does. Blocks that others share are copied before their rows
   * change; blocks for new tokens are taken, and empty ones given back. Too few free blocks are
   * {@link Status#OUT_OF_MEMORY}.
   *
   * @param sequence the tokens that the rows belong to
   * @param edit what changes
   * @param stream a CUstream; ignored on the CPU
   */
  public void edit(Sequence sequence, Edit edit, long stream) {
    long cached = enterAlone();
    try (Struct in = edit.write()) {
      long positions = sequence.enterAlone();
      try {
        Native.kvevict_paged_edit(cached, positions, in.address, stream);
      } finally {
        sequence.leave();
      }
    } finally {
      leave();
    }
  }

  /**
   * Reads a prompt in chunks as {@link Sequence#prefill} does, on the CPU: makes room before each one,
   * and gives back what evictions leave empty.
   *
   * @param prompt the prompt and how to read it
   * @param sequence the tokens that the rows belong to
   * @param workspace scratch for {@link Operation#EVICT}
   * @return what the prefill took
   */
  public PrefillReport prefill(Prefill prompt, Sequence sequence, ByteBuffer workspace) {
    PrefillReport report = prefill(prompt, sequence,
        Memory.workspace(sequence.device(), workspace), Memory.workspaceBytes(workspace), 0);
    Reference.reachabilityFence(workspace);
    return report;
  }

  /**
   * Reads a prompt in chunks as {@link Sequence#prefill} does: makes room before each one, and gives
   * back what evictions leave empty.
   *
   * @param prompt the prompt and how to read it
   * @param sequence the tokens that the rows belong to
   * @param workspace address of scratch for {@link Operation#EVICT}
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   * @return what the prefill took
   */
  public PrefillReport prefill(Prefill prompt, Sequence sequence, long workspace,
      long workspaceBytes, long stream) {
    return sequence.prefill(prompt, this, workspace, workspaceBytes, stream);
  }
}
