package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.IntBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.function.IntUnaryOperator;
import java.util.stream.IntStream;

/**
 * The layout of one layer's cache. K and V may differ in dtype, head size and strides. Nothing is
 * copied; the buffers stay reachable until the view is closed. Immutable, so threads may share it.
 */
public final class View implements AutoCloseable {
  private volatile Content content;

  private View(Content content) {
    this.content = content;
  }

  /**
   * The view of a contiguous cache.
   *
   * @param kvHeads KV heads
   * @param k keys
   * @param v values; null for caches with one row per token (MLA)
   * @return the view
   */
  public static View of(int kvHeads, Plane k, Plane v) {
    return builder(kvHeads).k(k).v(v).build();
  }

  /**
   * A view to fill in.
   *
   * @param kvHeads KV heads
   * @return the builder
   */
  public static Builder builder(int kvHeads) {
    return new Builder(Memory.count(kvHeads, "kvHeads"));
  }

  /**
   * Checks the view as executing calls on the CPU do, which read the block table.
   *
   * @param tokenCount slots that will be addressed; 0 is valid
   * @throws KvEvictException if the layout is wrong
   * @throws IllegalArgumentException if a buffer is too short
   */
  public void validate(int tokenCount) {
    try (Content cache = content(Device.CPU, tokenCount, null)) {
      Native.kvevict_view_validate(cache.struct.address, tokenCount);
    }
  }

  /** Lets go of the buffers; a second call does nothing. */
  @Override
  public void close() {
    content = null;
  }

  /** One of several, which are told apart by a name; null is an error that says which. */
  static View at(List<View> views, int index, String name) {
    View view = views.get(index);
    if (view == null) {
      throw new NullPointerException(name + "[" + index + "] is null");
    }
    return view;
  }

  /** The open view's content, for calls on a device. */
  Content content(Device device) {
    Content open = content;
    if (open == null || open.owner != null && open.owner.isClosed()) {
      throw new IllegalStateException("this View is closed");
    }
    if (open.table != null) {
      Memory.requireCpu(device, "blocks");
    }
    for (Plane plane : open.planes) {
      if (plane.hasTableBuffer()) {
        Memory.requireCpu(device, "addresses");
      }
    }
    return open;
  }

  /**
   * The open view's content, whose buffers hold tokenCount, or of each head as many as the counts say,
   * for calls on a device.
   */
  Content content(Device device, int tokenCount, Numbers tokenCounts) {
    Content open = content(device);
    open.require(Memory.count(tokenCount, "tokenCount"),
        head -> Numbers.tokensOf(tokenCounts, head, tokenCount));
    return open;
  }

  /** What calls need of a view; a try block keeps it and its buffers reachable. */
  static final class Content implements AutoCloseable {
    final Struct struct = new Struct(Abi.View.SIZEOF);
    final int kvHeads;
    private final List<Plane> planes;
    private final List<String> names;
    private final Struct companions;
    private final int blockSize;
    private final IntBuffer table; // null unless paged and in a buffer
    private final long tableHeadStride;
    private final int ringSlots;
    private final int firstRecent;
    private final boolean hasRecent;
    private final Handle owner; // of the memory, if the library made it

    private Content(Builder from) {
      owner = from.owner;
      kvHeads = from.kvHeads;
      planes = new ArrayList<>();
      names = new ArrayList<>();
      add(from.k, "k");
      add(from.v, "v");
      int n = from.companions.size();
      companions = new Struct(n * Abi.Plane.SIZEOF);
      for (int i = 0; i < n; ++i) {
        add(from.companions.get(i), "companion " + i);
        Plane.write(from.companions.get(i), companions, i * Abi.Plane.SIZEOF);
      }
      blockSize = from.blockSize;
      table = from.table;
      tableHeadStride = from.blockTableHeadStride;
      ringSlots = from.ringSlots;
      firstRecent = from.firstRecent;
      hasRecent = from.companions.stream().anyMatch(Plane::isRecent);

      Plane.write(from.k, struct, Abi.View.K);
      Plane.write(from.v, struct, Abi.View.V);
      from.fill(struct, 0)
          .putLong(Abi.View.COMPANIONS, n == 0 ? 0 : companions.address)
          .putInt(Abi.View.N_COMPANIONS, n)
          .putLong(Abi.View.BLOCK_TABLE, from.tableAddress)
          .putLong(Abi.View.BLOCK_TABLE_LEN, from.tableLength);
    }

    private void add(Plane plane, String name) {
      if (plane != null) {
        planes.add(plane);
        names.add(name);
      }
    }

    /** Whether nothing that require(maxTokens) checks can go wrong. */
    boolean holds(int maxTokens) {
      for (Plane plane : planes) {
        if (plane.hasEnd() && (blockSize > 0 || plane.capacity(kvHeads) < maxTokens)) {
          return false;
        }
      }
      return true;
    }

    /** Throws unless the buffers hold so many tokens of each head, or of all heads. */
    void require(int... held) {
      require(IntStream.of(held).max().getAsInt(), head -> held[Math.min(head, held.length - 1)]);
    }

    /** Throws unless the buffers hold tokenCount, in blocks those that each head has. */
    void require(int tokenCount, IntUnaryOperator tokensOf) {
      for (int i = 0; i < planes.size(); ++i) {
        if (planes.get(i).isRecent()) {
          planes.get(i).require(Math.max(0, tokenCount - firstRecent), kvHeads, names.get(i));
        }
      }
      if (hasRecent && tokenCount > firstRecent) {
        requireRows(firstRecent, head -> firstRecent);
      } else if (ringSlots > 0 && tokenCount > 0) { // all of it is in use
        int rows = Math.max(tokenCount, ringSlots);
        requireRows(rows, head -> rows);
      } else {
        requireRows(tokenCount, tokensOf);
      }
    }

    private void requireRows(int tokenCount, IntUnaryOperator tokensOf) {
      int highest = blockSize > 0 ? highestBlock(tokensOf) : 0;
      for (int i = 0; i < planes.size(); ++i) {
        Plane plane = planes.get(i);
        if (plane.isRecent()) {
          continue;
        } else if (blockSize == 0) {
          plane.require(plane.rowsFor(tokenCount), kvHeads, names.get(i));
        } else if (highest >= plane.blocks(kvHeads, blockSize)) {
          throw new IllegalArgumentException(names.get(i) + " holds "
              + plane.blocks(kvHeads, blockSize) + " blocks, the block table names " + highest);
        }
      }
    }

    /** The highest block that holds the heads' tokens; -1 if unknown. */
    private int highestBlock(IntUnaryOperator tokensOf) {
      int highest = -1;
      long begin = 0;
      for (int head = 0; table != null && head < kvHeads; ++head) {
        long used = ((long) tokensOf.applyAsInt(head) + blockSize - 1) / blockSize;
        for (long i = begin; i < Math.min(begin + used, table.remaining()); ++i) {
          highest = Math.max(highest, table.get(table.position() + (int) i));
        }
        begin = Math.min(begin + tableHeadStride, table.remaining());
      }
      return highest;
    }

    void requireWritable() {
      for (int i = 0; i < planes.size(); ++i) {
        if (planes.get(i).isReadOnly()) {
          throw new IllegalArgumentException(names.get(i) + " is in a read-only buffer");
        }
      }
    }

    void requireWritableTables() {
      boolean readOnly = table != null && table.isReadOnly();
      for (Plane plane : planes) {
        readOnly = readOnly || table == null && plane.hasReadOnlyTable();
      }
      if (readOnly) {
        throw new IllegalArgumentException("a table of blocks is in a read-only buffer");
      }
    }

    @Override
    public void close() {
      Reference.reachabilityFence(this);
    }
  }

  /** Names the parts of a {@link View}. */
  public static final class Builder extends ViewFields<Builder> {
    private Plane k;
    private Plane v;
    private final List<Plane> companions = new ArrayList<>();
    private IntBuffer table;
    private long tableAddress;
    private long tableLength;
    private Handle owner;

    private Builder(int kvHeads) {
      this.kvHeads = kvHeads;
    }

    @Override
    Builder next() {
      return this;
    }

    /**
     * Keys.
     *
     * @param plane their rows
     * @return this
     */
    public Builder k(Plane plane) {
      k = plane;
      return this;
    }

    /**
     * Values.
     *
     * @param plane their rows; null or never called: none
     * @return this
     */
    public Builder v(Plane plane) {
      v = plane;
      return this;
    }

    /**
     * Adds what else has a row per token and head and must move along, such as scales.
     *
     * @param plane the rows
     * @return this
     */
    public Builder companion(Plane plane) {
      companions.add(Objects.requireNonNull(plane, "plane"));
      return this;
    }

    /**
     * Makes the cache a paged one, on the CPU. The table is read when calls are made.
     *
     * @param size tokens per block
     * @param blocks direct, in native order: block ids in token order, from position to limit
     * @return this
     */
    public Builder paged(int size, IntBuffer blocks) {
      paged(size, Memory.numbers(blocks, "blocks"), blocks.remaining());
      table = blocks.duplicate(); // whose position stays
      return this;
    }

    /**
     * Makes the cache a paged one, with the block table at an address.
     *
     * @param size tokens per block
     * @param address i32 block ids in token order, on the context's device
     * @param length block ids
     * @return this
     */
    public Builder paged(int size, long address, long length) {
      blockSize = Memory.count(size, "size");
      tableAddress = address;
      tableLength = Memory.count(length, "length");
      table = null;
      return this;
    }

    /** Keeps an object reachable, with which the view's memory ends. */
    Builder owner(Handle handle) {
      owner = handle;
      return this;
    }

    /**
     * The view.
     *
     * @return it
     */
    public View build() {
      return new View(new Content(this));
    }
  }
}
