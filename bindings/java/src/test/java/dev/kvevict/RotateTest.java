package dev.kvevict;

import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.List;

/** Keys at other positions. */
final class RotateTest {
  private static final int N = 10;
  private static final int ROW = Caches.KVH * Caches.D;
  private static final int PAIRS = Caches.D / 2;
  private static final float[] INV_FREQ = {1, 0.1f, 0.01f, 0.001f};

  private RotateTest() {}

  static Plan plan(Context context, int layerCount, int maxTokens) {
    Geometry geometry = Geometry.builder().layers(layerCount).queryHeads(Caches.QH)
        .kvHeads(Caches.KVH).headDim(Caches.D).maxTokens(maxTokens).build();
    return context.newPlan(
        geometry.withRope(RopeLayout.INTERLEAVED, INV_FREQ), Policy.parse("none"));
  }

  /** A cache and what it held. */
  private static final class Cache {
    final FloatBuffer k = Caches.random(N * ROW, 1);
    final FloatBuffer v = Caches.random(N * ROW, 2);
    final FloatBuffer oldK = Caches.copy(k);
    final FloatBuffer oldV = Caches.copy(v);
    final View view = Caches.view(k, v);

    /** Every key of a head is rotated by its slot's offset. */
    void turned(int head, int... offsets) {
      for (int slot = 0; slot < N; ++slot) {
        for (int f = 0; f < PAIRS; ++f) {
          int at = slot * ROW + head * Caches.D + 2 * f;
          double angle = (slot < offsets.length ? offsets[slot] : 0) * (double) INV_FREQ[f];
          double re = oldK.get(at);
          double im = oldK.get(at + 1);
          double error = Math.max(
              Math.abs(k.get(at) - (re * Math.cos(angle) - im * Math.sin(angle))),
              Math.abs(k.get(at + 1) - (re * Math.sin(angle) + im * Math.cos(angle))));
          Check.that(error <= 4e-6, "slot " + slot + ", pair " + f + ": " + error);
        }
      }
      Check.equal(oldV, v);
    }
  }

  static void keysAreTurnedAsAtOtherPositions() {
    int[] shared = {0, -1, 7, -300, 2, 2, 0, 1, 5, -2};
    Cache a = new Cache();
    Cache b = new Cache();
    try (Context context = Context.create(); Plan plan = plan(context, 2, N)) {
      Check.that(plan.capabilities(0).canRotate(), "cannot rotate");
      Check.equal(Reason.NONE, plan.capabilities(0).rotateReason());
      plan.rotate(List.of(Rotation.of(0, a.view, N, Caches.ints(shared)),
          Rotation.of(1, b.view, 4, Caches.ints(3, 0, -5, 8, 9, 9, -9, 1)).withListCount(Caches.KVH)
              .withTokenCounts(Caches.ints(4, 2))));
      a.turned(0, shared);
      a.turned(1, shared);
      b.turned(0, 3, 0, -5, 8);
      b.turned(1, 9, 9);

      Cache address = new Cache();
      IntBuffer offsets = Caches.ints(shared);
      IntBuffer counts = Caches.ints(N, N);
      plan.rotate(List.of(Rotation.of(0, address.view, N, Memory.address(offsets, "offsets"), N)
          .withTokenCounts(Memory.address(counts, "counts"))), 0);
      Check.equal(a.k, address.k);
      plan.rotate(List.of());
    }
  }

  static void wrongUseIsRefused() {
    Class<IllegalArgumentException> wrong = IllegalArgumentException.class;
    Class<KvEvictException> refused = KvEvictException.class;
    Cache cache = new Cache();
    IntBuffer offsets = Caches.ints(new int[N]);
    View readOnly = Caches.view(cache.k.asReadOnlyBuffer(), cache.v);
    try (Context context = Context.create(); Plan plan = plan(context, 1, 2 * N);
        Plan without = Caches.plan(context, 1, N, "none")) {
      Rotation good = Rotation.of(0, cache.view, N, offsets);
      Check.fails(wrong, () -> Rotation.of(0, cache.view, -1, offsets), "tokenCount is negative: -1");
      Check.fails(wrong, () -> good.withListCount(-1), "listCount is negative: -1");
      Check.fails(wrong,
          () -> plan.rotate(List.of(Rotation.of(0, cache.view, N + 1, offsets))), "k", "10", "11");
      Check.fails(
          wrong, () -> plan.rotate(List.of(Rotation.of(0, readOnly, N, offsets))), "read-only");
      Check.fails(wrong, () -> plan.rotate(List.of(good.withTokenCounts(Caches.ints(1)))),
          "tokenCounts has 1 elements, 2 are needed");
      Check.fails(refused, () -> plan.rotate(List.of(Rotation.of(1, cache.view, N, offsets))),
          "layer 1");
      Check.fails(refused, () -> plan.rotate(List.of(good.withListCount(3))), "n_lists 3");
      Check.fails(refused,
          () -> plan.rotate(List.of(Rotation.of(0, cache.view, N, Caches.ints(1, 2)))),
          "offsets_len 2");
      Check.fails(refused, () -> plan.rotate(List.of(good, good)), "rotations[1]");
      Check.fails(refused, () -> without.rotate(List.of(good)), "rope_inv_freq");
      Check.equal(cache.oldK, cache.k);
    }
  }
}
