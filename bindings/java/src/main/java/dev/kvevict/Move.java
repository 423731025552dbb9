package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.IntBuffer;
import java.util.List;
import java.util.Objects;

/** One layer's part of a call that moves rows. Immutable. */
public final class Move extends MoveFields<Move> {
  private final View view;
  private final KeepLists keep; // null: all, to a destination
  private Numbers tokenCounts; // null: all heads hold tokenCount
  private View destination; // null: in place

  private Move(View view, int tokenCount, KeepLists keep) {
    this.view = Objects.requireNonNull(view, "view");
    this.tokenCount = Memory.count(tokenCount, "tokenCount");
    this.keep = keep;
  }

  private Move withTokenCounts(Numbers each) {
    Move next = next();
    next.tokenCounts = each;
    return next;
  }

  /**
   * A layer's part.
   *
   * @param view the layer's cache
   * @param tokenCount slots held before, the most of any head
   * @param keep slots that are held
   * @return the move
   */
  public static Move of(View view, int tokenCount, KeepLists keep) {
    return new Move(view, tokenCount, Objects.requireNonNull(keep, "keep"));
  }

  /**
   * All slots that are held, to another cache.
   *
   * @param view the layer's cache
   * @param tokenCount slots held, the most of any head
   * @param destination the cache to which they are copied
   * @return the move
   */
  public static Move all(View view, int tokenCount, View destination) {
    return new Move(view, tokenCount, null).withDestination(destination);
  }

  /**
   * Sets the slots held by each head if they differ, on the CPU. Blocks beyond a head's count need
   * not be in its table.
   *
   * @param each slots of a KV head, at most tokenCount; direct, in native order
   * @return this move with the counts
   */
  public Move withTokenCounts(IntBuffer each) {
    return withTokenCounts(Numbers.of(each, "each"));
  }

  /**
   * Sets the slots held by each head if they differ, at an address.
   *
   * @param each address of u32 [kvHeads], at most tokenCount, on the context's device
   * @return this move with the counts
   */
  public Move withTokenCounts(long each) {
    return withTokenCounts(Numbers.at(each, Integer.MAX_VALUE, "each"));
  }

  /**
   * Another cache that a context copies survivors to when it compacts, which is then all that
   * changes.
   *
   * @param cache one with the same KV heads and head sizes, in any layout; if K or V have another dtype
   *     there, rows are requantised
   * @return this move to the other cache
   */
  public Move withDestination(View cache) {
    Move next = next();
    next.destination = Objects.requireNonNull(cache, "cache");
    return next;
  }

  private int slotsKept() {
    return Math.addExact(firstSlot, mostKept());
  }

  private int mostKept() {
    return keep == null ? tokenCount : keep.count;
  }

  /** The native structs of a call's moves; a try block keeps what they point to reachable. */
  static final class All implements AutoCloseable {
    private static final int PARTS = 2 * Abi.View.SIZEOF + Abi.KeepLists.SIZEOF;

    final Struct struct;
    final int n;
    private final Move[] moves;
    private final View.Content[] caches; // and destinations

    /** If a call only asks for sizes, the caches must hold what is kept, otherwise all slots. */
    All(Device device, List<Move> list, boolean sizes) {
      moves = list.toArray(new Move[0]);
      n = moves.length;
      caches = new View.Content[2 * n];
      struct = new Struct(n * (Abi.Move.SIZEOF + PARTS));
      for (int i = 0; i < n; ++i) {
        Move move = moves[i];
        int least = move.destination == null ? move.slotsKept() : move.mostKept();
        caches[i] = move.view.content(device, sizes ? least : move.tokenCount, move.tokenCounts);
        if (!sizes && move.destination == null) {
          caches[i].requireWritable();
        }
        int at = i * Abi.Move.SIZEOF;
        int view = n * Abi.Move.SIZEOF + i * PARTS;
        int keep = view + 2 * Abi.View.SIZEOF;
        struct.copyFrom(caches[i].struct, view);
        if (move.keep != null) {
          move.keep.write(device, false, struct, keep);
        }
        move.fill(struct, at)
            .putLong(at + Abi.Move.VIEW, struct.address + view)
            .putLong(at + Abi.Move.KEEP, move.keep == null ? 0 : struct.address + keep)
            .putLong(at + Abi.Move.TOKEN_COUNTS,
                Numbers.each(move.tokenCounts, device, caches[i].kvHeads, "tokenCounts"));
        if (move.destination != null) {
          View.Content to = move.destination.content(device, move.slotsKept(), null);
          to.requireWritable();
          caches[n + i] = to;
          struct.copyFrom(to.struct, view + Abi.View.SIZEOF);
          struct.putLong(at + Abi.Move.DESTINATION, struct.address + view + Abi.View.SIZEOF);
        }
      }
    }

    @Override
    public void close() {
      Reference.reachabilityFence(this);
    }
  }
}
