package dev.kvevict;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.List;
import java.util.function.IntUnaryOperator;

/** Rows in an order that does not ascend. */
final class ReorderTest {
  private static final int N = 10;
  private static final int ROW = Caches.KVH * Caches.D;
  private static final int[] RING = {4, 5, 6, 7, 8, 9, 0, 1, 2, 3}; // slot 4 has the oldest token
  private static final int[] IN_PLACE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};

  private ReorderTest() {}

  /** A cache whose elements differ, and what it held. */
  private static final class Cache {
    final FloatBuffer k = Caches.random(N * ROW, 1);
    final FloatBuffer v = Caches.random(N * ROW, 2);
    final FloatBuffer oldK = Caches.copy(k);
    final FloatBuffer oldV = Caches.copy(v);
    final View view = Caches.view(k, v);

    /** Slot i of a head holds the row that slot slots[i] held. */
    void holds(int head, int... slots) {
      holds(head, slot -> slot, slots);
    }

    void holds(int head, IntUnaryOperator place, int... slots) {
      for (int slot = 0; slot < slots.length; ++slot) {
        for (int e = head * Caches.D; e < (head + 1) * Caches.D; ++e) {
          int to = place.applyAsInt(slot) * ROW + e;
          int from = place.applyAsInt(slots[slot]) * ROW + e;
          Check.equal(oldK.get(from), k.get(to));
          Check.equal(oldV.get(from), v.get(to));
        }
      }
    }
  }

  static void aWrappedRingIsStraightened() {
    try (Context context = Context.create()) {
      Cache cache = new Cache();
      ByteBuffer workspace = context.reorderWorkspace(Caches.sized(cache.view, 1, N)).allocate();
      context.reorder(Caches.moves(cache.view, N, 1, RING), workspace);
      cache.holds(0, RING);
      cache.holds(1, RING);

      Cache address = new Cache();
      IntBuffer slots = Caches.ints(RING);
      KeepLists lists = KeepLists.at(Memory.address(slots, "slots"), N, 1, N);
      context.reorder(List.of(Move.of(address.view, N, lists)),
          Memory.address(workspace, "workspace"), workspace.remaining(), 0);
      Check.equal(cache.k, address.k);
    }
  }

  static void aWrappedRingInAPoolOfTokensIsStraightened() {
    int[] table = {7, 2, 9, 0, 4, 1, 8, 3, 6, 5};
    Cache pool = new Cache();
    try (Context context = Context.create();
        View view = View.builder(Caches.KVH)
            .k(Caches.plane(pool.k, Caches.KVH).withBlockStride(ROW * 4))
            .v(Caches.plane(pool.v, Caches.KVH).withBlockStride(ROW * 4))
            .paged(1, Caches.ints(table))
            .build()) {
      List<Move> moves = Caches.moves(view, N, 1, RING);
      context.reorder(moves, context.reorderWorkspace(moves).allocate());
      pool.holds(0, slot -> table[slot], RING);
      pool.holds(1, slot -> table[slot], RING);
    }
  }

  static void aRowMayGoToSeveralSlots() {
    Cache cache = new Cache();
    try (Context context = Context.create()) {
      ByteBuffer forMore = context.reorderWorkspace(Caches.sized(cache.view, 1, N)).allocate();
      context.reorder(Caches.moves(cache.view, N, 1, 9, 0, 9, 0), forMore);
      cache.holds(1, 9, 0, 9, 0, 4, 5, 6, 7, 8, 9);
    }
  }

  static void headsHaveListsOfTheirOwn() {
    Cache cache = new Cache();
    try (Context context = Context.create()) {
      ByteBuffer workspace = context.reorderWorkspace(Caches.sized(cache.view, 2, 3)).allocate();
      context.reorder(Caches.moves(cache.view, N, 2, 2, 1, 0, 8, 8, 1), workspace);
      cache.holds(0, 2, 1, 0);
      cache.holds(1, 8, 8, 1);
    }
  }

  static void workspacesHaveTheLibrarysSize() {
    Cache cache = new Cache();
    try (Context context = Context.create()) {
      Workspace sizes = context.reorderWorkspace(Caches.sized(cache.view, 1, N));
      long bytes = sizes.leastBytes();
      Check.that(bytes >= N * 8, bytes + " bytes");
      Check.equal(bytes, sizes.bestBytes());
      Check.that(context.reorderWorkspace(Caches.sized(cache.view, 2, N)).bestBytes() > bytes,
          "lists need more");
      Check.equal(0L, context.reorderWorkspace(Caches.sized(cache.view, 1, 0)).bestBytes());
      context.reorder(Caches.moves(cache.view, N, 1), null);
      ByteBuffer workspace = context.reorderWorkspace(Caches.sized(cache.view, 1, N)).allocate();
      Check.equal(bytes, (long) workspace.remaining());
      workspace.limit(workspace.limit() - 1);
      String text = "workspace_bytes " + (bytes - 1) + " < " + bytes;
      Check.fails(KvEvictException.class,
          () -> context.reorder(Caches.moves(cache.view, N, 1, RING), workspace), text);
      cache.holds(0, IN_PLACE);
    }
  }

  static void compactionTakesAWorkspaceToo() {
    Cache cache = new Cache();
    try (Context context = Context.create()) {
      List<Move> moves = Caches.moves(cache.view, N, 1, 1, 5);
      Check.equal(new Records.Workspace(64, 0, 0, Device.CPU), context.compactWorkspace(moves));
      ByteBuffer workspace = ByteBuffer.allocateDirect(128).alignedSlice(64);
      context.compact(
          moves, Memory.address(workspace, "workspace"), workspace.remaining(), 0);
      cache.holds(0, 1, 5);
    }
  }

  static void wrongUseIsRefused() {
    Class<IllegalArgumentException> wrong = IllegalArgumentException.class;
    Class<KvEvictException> refused = KvEvictException.class;
    Cache cache = new Cache();
    View view = cache.view;
    Context context = Context.create();
    ByteBuffer scratch = context.reorderWorkspace(Caches.sized(view, 1, N)).allocate();
    List<Move> ring = Caches.moves(view, N, 1, RING);
    Check.fails(NullPointerException.class, () -> KeepLists.of(null, 1, 1), "slots");
    Check.fails(NullPointerException.class, () -> Move.of(null, N, KeepLists.of(1, 1)), "view");
    Check.fails(NullPointerException.class, () -> Move.of(view, N, null), "keep");
    Check.fails(wrong, () -> KeepLists.of(IntBuffer.wrap(RING), 1, N),
        "slots is not a direct buffer");
    Check.fails(wrong, () -> KeepLists.of(3, RING), "10 slots are not 3 lists");
    Check.fails(wrong, () -> KeepLists.at(0, 0, 1, -1), "count is negative");
    Check.fails(wrong, () -> KeepLists.at(0, 0, -1, 1), "listCount is negative");
    Check.fails(wrong, () -> KeepLists.of(1, RING).withListStride(-1), "listStride is negative");
    Check.fails(wrong, () -> context.reorder(ring, ByteBuffer.allocate(4096)),
        "workspace is not a direct buffer");
    Check.fails(wrong, () -> Move.of(view, -1, KeepLists.of(1, 1)), "tokenCount is negative");
    Check.fails(wrong, () -> context.reorder(Caches.moves(view, N + 1, 1, RING), scratch),
        "k holds 10 rows of 2 heads, not 11");
    Check.fails(wrong, () -> context.reorderWorkspace(Caches.sized(view, 1, N + 1)).bestBytes(),
        "k holds 10 rows");
    View readOnly = Caches.view(cache.k.asReadOnlyBuffer(), cache.v);
    Check.fails(wrong, () -> context.reorder(Caches.moves(readOnly, N, 1, RING), scratch), "k",
        "read-only");
    Check.fails(refused, () -> context.reorder(Caches.moves(view, N, 1, 0, N), scratch),
        "keep[0][1] 10 is not in [0, n_tokens 10)");
    Check.fails(refused, () -> context.reorder(Caches.moves(view, N, 1, -1), scratch),
        "keep[0][0] -1");
    Check.fails(refused, () -> context.reorder(Caches.moves(view, 9, 1, RING), scratch),
        "keep.count 10 > n_tokens 9");
    Check.fails(refused, () -> context.reorder(Caches.moves(view, N, 3, 1, 2, 3), scratch),
        "keep.n_lists 3");
    Check.fails(refused, () -> context.reorder(ring, null), "workspace_bytes 0");
    Check.fails(refused, () -> context.reorderWorkspace(Caches.sized(view, 3, N)).bestBytes(),
        "keep.n_lists 3");
    cache.holds(0, IN_PLACE);
    view.close();
    Class<IllegalStateException> closed = IllegalStateException.class;
    Check.fails(closed, () -> context.reorder(ring, scratch), "this View is closed");
    context.close();
    Check.fails(closed, () -> context.reorderWorkspace(ring).bestBytes(), "this Context is closed");
    Check.fails(closed, () -> context.reorder(ring, scratch), "this Context is closed");
  }
}
