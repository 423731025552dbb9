package dev.kvevict;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.Arrays;

/** Score, select, compact: every shape of their arguments means the same. */
final class DoorsTest {
  private static final int N = 48;
  private static final int ROW = Caches.KVH * Caches.D;

  private DoorsTest() {}

  static void scoresOfBuffersAndAddressesAreEqual() {
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, 64, "snapkv:budget=16,window=4")) {
      FloatBuffer k = Caches.random(N * ROW, 1);
      Plane queries = Caches.plane(Caches.random(4 * Caches.QH * Caches.D, 2), Caches.QH);
      View view = Caches.view(k, Caches.random(N * ROW, 3));
      ByteBuffer workspace = plan.allocateWorkspace(Operation.SCORE_WINDOW);
      Check.equal(plan.workspaceBytes(Operation.SCORE_WINDOW), (long) workspace.remaining());
      long least = plan.leastWorkspaceBytes(Operation.SCORE_WINDOW, 0);
      Check.that(least <= workspace.remaining(), "the least is the most");
      Check.that(plan.workspaceBytes(Operation.SCORE_WINDOW, 8) < workspace.remaining(),
          "fewer tokens need as much");

      FloatBuffer first = Caches.floats(Caches.KVH * N);
      plan.scoreWindow(queries, null, view, N, first, workspace);
      FloatBuffer second = Caches.floats(Caches.KVH * N);
      Plane lse = Plane.of(Caches.floats(4 * Caches.QH), DType.F32, 1, Caches.QH * 4, 4);
      plan.scoreWindow(queries, lse, view, N, Memory.address(second, "second"),
          second.remaining(), Memory.address(workspace, "workspace"), workspace.remaining(), 0);
      Check.equal(first, second);
      Check.equal(Float.POSITIVE_INFINITY, first.get(N - 1)); // a kept window
      Check.that(first.get(0) > 0 && first.get(0) < 1, "a mean of weights: " + first.get(0));
    }
  }

  static void keepListsOfArraysBuffersAndAddressesAreEqual() {
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, 64, "custom:budget=6,sink=1,recent=1")) {
      float[] scores = new float[Caches.KVH * N];
      for (int i = 0; i < scores.length; ++i) {
        scores[i] = (i * 37) % 101;
      }
      FloatBuffer direct = Caches.floats(scores.length).put(0, scores);
      IntBuffer fixed = Caches.bytes(4).asIntBuffer().put(0, 7);
      ByteBuffer workspace = plan.allocateWorkspace(Operation.SELECT);

      int[] array = new int[Caches.KVH * 6];
      Check.equal(6, plan.select(0, scores, N, new int[] {7}, array, workspace));
      IntBuffer buffer = Caches.bytes(4 * array.length).asIntBuffer();
      Check.equal(6, plan.select(0, direct, N, fixed, buffer, workspace));
      IntBuffer raw = Caches.bytes(4 * array.length).asIntBuffer();
      Check.equal(6, plan.select(0, Memory.address(direct, "direct"), direct.remaining(), N,
          Memory.address(fixed, "fixed"), 1, Memory.address(raw, "raw"), raw.remaining(),
          Memory.address(workspace, "workspace"), workspace.remaining(), 0));
      Check.equal(buffer, raw);
      Check.equal(IntBuffer.wrap(array), buffer);

      int[] expected = expectedKeep(scores);
      Check.equal(expected, Arrays.copyOf(array, 6));
    }
  }

  /** Sink 0, protected 7, recent N - 1 and the three highest others of head 0. */
  private static int[] expectedKeep(float[] scores) {
    Integer[] order = java.util.stream.IntStream.range(1, N - 1).filter(i -> i != 7).boxed()
        .sorted((a, b) -> Float.compare(scores[b], scores[a])).toArray(Integer[]::new);
    return java.util.stream.IntStream.of(0, 7, N - 1, order[0], order[1], order[2]).sorted()
        .toArray();
  }

  static void rowsMoveAsTheKeepListSays() {
    int[] keep = {0, 3, 5, 1, 2, 47}; // per head
    try (Context context = Context.create()) {
      FloatBuffer k = Caches.random(N * ROW, 4);
      FloatBuffer before = Caches.copy(k);
      FloatBuffer v = Caches.random(N * ROW, 5);
      context.compact(Caches.view(k, v), N, keep, 2);
      for (int head = 0; head < 2; ++head) {
        for (int slot = 0; slot < 3; ++slot) {
          for (int e = 0; e < Caches.D; ++e) {
            Check.equal(before.get((keep[head * 3 + slot] * 2 + head) * Caches.D + e),
                k.get((slot * 2 + head) * Caches.D + e));
          }
        }
      }
      FloatBuffer again = Caches.copy(before);
      IntBuffer direct = Caches.bytes(24).asIntBuffer().put(0, keep);
      context.compact(Caches.view(again, Caches.random(N * ROW, 5)), N, direct, 2);
      Check.equal(k.limit(3 * ROW), again.limit(3 * ROW));
      Check.fails(KvEvictException.class,
          () -> context.compact(Caches.view(k.clear(), v), N, new int[] {3, 2}, 1), "keep");
    }
  }

  /** Blocks of a pool in any order, values opaque, scales along. */
  static void pagedCachesAndCompanions() {
    int[] blocks = {2, 0, 3};
    IntBuffer table = Caches.bytes(12).asIntBuffer().put(0, blocks);
    ByteBuffer values = Caches.bytes(4 * 2 * 2 * 3); // 4 blocks, 2 tokens, 2 heads, 3 bytes
    for (int i = 0; i < values.capacity(); ++i) {
      values.put(i, (byte) i);
    }
    FloatBuffer scales = Caches.random(4 * 2 * 2, 6); // one per row
    FloatBuffer keys = Caches.random(4 * 2 * ROW, 7);
    FloatBuffer keysBefore = Caches.copy(keys);
    FloatBuffer scalesBefore = Caches.copy(scales);
    try (Context context = Context.create();
        View view = View.builder(2)
            .k(Caches.plane(keys, 2).withBlockStride(2 * ROW * 4))
            .v(Plane.opaque(values, 3, 6, 3).withBlockStride(12))
            .companion(Plane.of(scales, DType.F32, 1, 8, 4).withBlockStride(16))
            .paged(2, table)
            .build()) {
      context.compact(view, 6, new int[] {1, 4, 5}, 1);
      int[] kept = {1, 4, 5};
      for (int slot = 0; slot < 3; ++slot) {
        int to = blocks[slot / 2] * 2 + slot % 2;
        int from = blocks[kept[slot] / 2] * 2 + kept[slot] % 2;
        Check.equal((byte) (from * 6), values.get(to * 6));
        Check.equal((byte) (from * 6 + 5), values.get(to * 6 + 5));
        Check.equal(scalesBefore.get(from * 2 + 1), scales.get(to * 2 + 1));
        Check.equal(keysBefore.get(from * ROW + 9), keys.get(to * ROW + 9));
      }
    }
  }
}
