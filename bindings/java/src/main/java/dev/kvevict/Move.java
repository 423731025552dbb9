package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.IntBuffer;
import java.util.List;
import java.util.Objects;

/** One layer's part of a call that moves rows. Immutable. */
public final class Move {
  private final View view;
  private final int tokenCount;
  private final KeepLists keep; // null: all, to a destination
  private final Numbers tokenCounts; // null: all heads hold tokenCount
  private final Merge merge;
  private final double mergeThreshold;
  private final double mergeFraction;
  private final int firstSlot;
  private final View destination; // null: in place

  private Move(View view, int tokenCount, KeepLists keep, Numbers tokenCounts, Merge merge,
      double mergeThreshold, double mergeFraction, int firstSlot, View destination) {
    this.view = Objects.requireNonNull(view, "view");
    this.tokenCount = Memory.count(tokenCount, "tokenCount");
    this.keep = keep;
    this.tokenCounts = tokenCounts;
    this.merge = Objects.requireNonNull(merge, "merge");
    this.mergeThreshold = mergeThreshold;
    this.mergeFraction = mergeFraction;
    this.firstSlot = Memory.count(firstSlot, "firstSlot");
    this.destination = destination;
  }

  private Move withTokenCounts(Numbers each) {
    return new Move(view, tokenCount, keep, each, merge, mergeThreshold, mergeFraction, firstSlot,
        destination);
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
    return new Move(view, tokenCount, Objects.requireNonNull(keep, "keep"), null, Merge.NONE, 0, 1, 0,
        null);
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
    return new Move(view, tokenCount, null, null, Merge.NONE, 0, 1, 0,
        Objects.requireNonNull(destination, "destination"));
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
   * Sets what becomes of the rows that go when a context compacts.
   *
   * @param rule how they merge into rows that stay
   * @return this move with the rule
   */
  public Move withMerge(Merge rule) {
    return withMerge(rule, 0, 1);
  }

  /**
   * The same, of the most similar rows.
   *
   * @param rule how they merge into rows that stay
   * @param threshold the least similarity of keys whose values merge, in [0, 1]
   * @param fraction the part of the values that go that merges, in (0, 1]
   * @return this move with the rule
   */
  public Move withMerge(Merge rule, double threshold, double fraction) {
    return new Move(view, tokenCount, keep, tokenCounts, rule, threshold, fraction, firstSlot,
        destination);
  }

  /**
   * Sets the slot of every head's first survivor when a context compacts. Without a destination what
   * is below it is neither read nor written, and no slot below it is listed.
   *
   * @param slot a slot of the destination, or of the cache itself
   * @return this move to slots from there on
   */
  public Move withFirstSlot(int slot) {
    return new Move(view, tokenCount, keep, tokenCounts, merge, mergeThreshold, mergeFraction, slot,
        destination);
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
    return new Move(view, tokenCount, keep, tokenCounts, merge, mergeThreshold, mergeFraction,
        firstSlot, Objects.requireNonNull(cache, "cache"));
  }

  private int slotsKept() {
    return Math.addExact(firstSlot, mostKept());
  }

  private int mostKept() {
    return keep == null ? tokenCount : keep.count();
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
        struct.putInt(at + Abi.Move.STRUCT_SIZE, Abi.Move.SIZEOF)
            .putInt(at + Abi.Move.N_TOKENS, move.tokenCount)
            .putLong(at + Abi.Move.VIEW, struct.address + view)
            .putLong(at + Abi.Move.KEEP, move.keep == null ? 0 : struct.address + keep)
            .putEnum(at + Abi.Move.MERGE, move.merge, "merge")
            .putDouble(at + Abi.Move.MERGE_THRESHOLD, move.mergeThreshold)
            .putDouble(at + Abi.Move.MERGE_FRACTION, move.mergeFraction)
            .putLong(at + Abi.Move.TOKEN_COUNTS,
                Numbers.each(move.tokenCounts, device, caches[i].kvHeads, "tokenCounts"))
            .putInt(at + Abi.Move.FIRST_SLOT, move.firstSlot);
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
