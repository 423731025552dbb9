package dev.kvevict;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
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

  private static IntBuffer direct(int... values) {
    return Caches.bytes(4 * values.length).asIntBuffer().put(0, values);
  }

  static void aWrappedRingIsStraightened() {
    try (Context context = Context.create()) {
      Cache array = new Cache();
      ByteBuffer workspace = context.allocateReorderWorkspace(array.view, N, 1);
      context.reorder(array.view, N, RING, 1, workspace);
      array.holds(0, RING);
      array.holds(1, RING);

      Cache buffer = new Cache();
      context.reorder(buffer.view, N, direct(RING), 1, workspace);
      Check.equal(array.k, buffer.k);
      Cache address = new Cache();
      IntBuffer slots = direct(RING);
      context.reorder(address.view, N, Memory.address(slots, "slots"), N, 1,
          Memory.address(workspace, "workspace"), workspace.remaining(), 0);
      Check.equal(array.k, address.k);
    }
  }

  static void aWrappedRingInAPoolOfTokensIsStraightened() {
    int[] table = {7, 2, 9, 0, 4, 1, 8, 3, 6, 5};
    Cache pool = new Cache();
    try (Context context = Context.create();
        View view = View.builder(Caches.KVH)
            .k(Caches.plane(pool.k, Caches.KVH).withBlockStride(ROW * 4))
            .v(Caches.plane(pool.v, Caches.KVH).withBlockStride(ROW * 4))
            .paged(1, direct(table))
            .build()) {
      context.reorder(view, N, RING, 1, context.allocateReorderWorkspace(view, N, 1));
      pool.holds(0, slot -> table[slot], RING);
      pool.holds(1, slot -> table[slot], RING);
    }
  }

  static void aRowMayGoToSeveralSlots() {
    Cache cache = new Cache();
    try (Context context = Context.create()) {
      ByteBuffer forMore = context.allocateReorderWorkspace(cache.view, N, 1);
      context.reorder(cache.view, N, new int[] {9, 0, 9, 0}, 1, forMore);
      cache.holds(1, 9, 0, 9, 0, 4, 5, 6, 7, 8, 9);
    }
  }

  static void headsHaveListsOfTheirOwn() {
    Cache cache = new Cache();
    try (Context context = Context.create()) {
      ByteBuffer workspace = context.allocateReorderWorkspace(cache.view, 3, 2);
      context.reorder(cache.view, N, new int[] {2, 1, 0, 8, 8, 1}, 2, workspace);
      cache.holds(0, 2, 1, 0);
      cache.holds(1, 8, 8, 1);
    }
  }

  static void workspacesHaveTheLibrarysSize() {
    Cache cache = new Cache();
    try (Context context = Context.create()) {
      long bytes = context.reorderWorkspaceBytes(cache.view, N, 1);
      Check.that(bytes >= N * 8, bytes + " bytes");
      Check.that(context.reorderWorkspaceBytes(cache.view, N, 2) > bytes, "lists need more");
      Check.equal(0L, context.reorderWorkspaceBytes(cache.view, 0, 1));
      context.reorder(cache.view, N, new int[0], 1, null);
      ByteBuffer workspace = context.allocateReorderWorkspace(cache.view, N, 1);
      Check.equal(bytes, (long) workspace.remaining());
      workspace.limit(workspace.limit() - 1);
      String text = "workspace_bytes " + (bytes - 1) + " < " + bytes;
      Check.fails(KvEvictException.class,
          () -> context.reorder(cache.view, N, RING, 1, workspace), text);
      Check.fails(KvEvictException.class,
          () -> context.reorder(cache.view, N, direct(RING), 1, workspace), text);
      cache.holds(0, IN_PLACE);
    }
  }

  static void compactionTakesAWorkspaceToo() {
    Cache cache = new Cache();
    try (Context context = Context.create()) {
      IntBuffer keep = direct(1, 5);
      long bytes = context.compactWorkspaceBytes(cache.view, 2) + 64;
      ByteBuffer workspace = Memory.allocateWorkspace(Device.CPU, bytes);
      context.compact(cache.view, N, Memory.address(keep, "keep"), 2, 1,
          Memory.address(workspace, "workspace"), workspace.remaining(), 0);
      cache.holds(0, 1, 5);
    }
  }

  static void wrongUseIsRefused() {
    Class<IllegalArgumentException> wrong = IllegalArgumentException.class;
    Class<KvEvictException> refused = KvEvictException.class;
    Cache cache = new Cache();
    View view = cache.view;
    Context context = Context.create();
    ByteBuffer scratch = context.allocateReorderWorkspace(view, N, 1);
    Check.fails(NullPointerException.class,
        () -> context.reorder(view, N, (int[]) null, 1, scratch), "slots");
    Check.fails(NullPointerException.class,
        () -> context.reorder(view, N, (IntBuffer) null, 1, scratch), "slots");
    Check.fails(wrong, () -> context.reorder(view, N, IntBuffer.wrap(RING), 1, scratch),
        "slots is not a direct buffer");
    Check.fails(wrong, () -> context.reorder(view, N, RING, 1, ByteBuffer.allocate(4096)),
        "workspace is not a direct buffer");
    Check.fails(wrong, () -> context.reorder(view, -1, RING, 1, scratch), "nTokens is negative");
    Check.fails(wrong, () -> context.reorderWorkspaceBytes(view, -1, 1), "nSlots is negative");
    Check.fails(wrong, () -> context.compactWorkspaceBytes(view, -1), "nKeep is negative");
    Check.fails(wrong, () -> context.reorder(view, N + 1, RING, 1, scratch),
        "k holds 10 rows of 2 heads, not 11");
    Check.fails(wrong, () -> context.reorderWorkspaceBytes(view, N + 1, 1), "k holds 10 rows");
    View readOnly = Caches.view(cache.k.asReadOnlyBuffer(), cache.v);
    Check.fails(wrong, () -> context.reorder(readOnly, N, RING, 1, scratch), "k", "read-only");
    Check.fails(wrong, () -> context.reorder(readOnly, N, direct(RING), 1, scratch), "read-only");
    Check.fails(refused, () -> context.reorder(view, N, new int[] {0, N}, 1, scratch),
        "slots[1] 10 is not in [0, n_tokens 10)");
    Check.fails(refused, () -> context.reorder(view, N, new int[] {-1}, 1, scratch), "slots[0] -1");
    Check.fails(refused, () -> context.reorder(view, 9, RING, 1, scratch), "slots_len 10");
    Check.fails(refused, () -> context.reorder(view, N, new int[3], 3, scratch), "n_slot_lists 3");
    Check.fails(refused, () -> context.reorder(view, N, RING, 1, null), "workspace_bytes 0");
    Check.fails(refused, () -> context.reorderWorkspaceBytes(view, N, 3), "n_slot_lists 3");
    cache.holds(0, IN_PLACE);
    view.close();
    Class<IllegalStateException> closed = IllegalStateException.class;
    Check.fails(closed, () -> context.reorder(view, N, RING, 1, scratch), "this View is closed");
    context.close();
    Check.fails(closed, () -> context.reorderWorkspaceBytes(view, N, 1), "this Context is closed");
    Check.fails(closed, () -> context.reorder(view, N, RING, 1, scratch), "this Context is closed");
  }
}
