package dev.kvevict;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.util.List;

/** Attention over a view. */
final class AttentionTest {
  private static final int N = 10;
  private static final int ROW = Caches.KVH * Caches.D;
  private static final int QUERIES = 3;

  private final FloatBuffer k = Caches.random(N * ROW, 1);
  private final FloatBuffer v = Caches.random(N * ROW, 2);
  private final FloatBuffer q = Caches.random(QUERIES * Caches.QH * Caches.D, 3);
  private final FloatBuffer out = Caches.floats(QUERIES * Caches.QH * Caches.D);
  private final View view = Caches.view(k, v);
  private final Attention good = job(N, QUERIES);

  private AttentionTest() {}

  private Attention job(int tokenCount, int queryCount) {
    return Attention.of(view, tokenCount, Caches.QH, queryCount, Caches.plane(q, Caches.QH),
        Caches.plane(out, Caches.QH));
  }

  private static ByteBuffer workspace(Context context, Attention job) {
    return context.attendWorkspace(List.of(job)).allocate();
  }

  private static void attend(Context context, Attention job) {
    context.attend(List.of(job), workspace(context, job));
  }

  /** The plain formula: output and log-sum-exp. */
  private double[] expected(int query, int head, int element) {
    double sum = 0;
    double output = 0;
    for (int t = 0; t <= N - QUERIES + query; ++t) {
      int row = t * ROW + head / (Caches.QH / Caches.KVH) * Caches.D;
      double dot = 0;
      for (int e = 0; e < Caches.D; ++e) {
        dot += (double) q.get((query * Caches.QH + head) * Caches.D + e) * k.get(row + e);
      }
      double weight = Math.exp(dot / Math.sqrt(Caches.D));
      sum += weight;
      output += weight * v.get(row + element);
    }
    return new double[] {output / sum, Math.log(sum)};
  }

  static void itIsThePlainFormula() {
    AttentionTest t = new AttentionTest();
    FloatBuffer lse = Caches.floats(QUERIES * Caches.QH);
    FloatBuffer sums = Caches.floats(Caches.KVH * N);
    try (Context context = Context.create()) {
      attend(context,
          t.good.withRowLse(Plane.of(lse, DType.F32, 1, Caches.QH * 4, 4))
              .withAttentionSums(Caches.scores(sums, N)).withSumHeads(Caches.KVH));
      context.attend(List.of(), null);
    }
    for (int i = 0; i < t.out.capacity(); ++i) {
      int row = i / Caches.D;
      double[] expected = t.expected(row / Caches.QH, row % Caches.QH, i % Caches.D);
      Check.that(Math.abs(t.out.get(i) - expected[0]) < 1e-5, "output " + i);
      Check.that(Math.abs(lse.get(row) - expected[1]) < 1e-5, "lse " + row);
    }
    double all = 0;
    for (int i = 0; i < sums.capacity(); ++i) {
      all += sums.get(i);
    }
    Check.that(Math.abs(all - QUERIES * Caches.QH) < 1e-4, "weights add up to " + all);
  }

  static void optionsMatter() {
    AttentionTest t = new AttentionTest();
    FloatBuffer sinks = Caches.random(Caches.QH, 4);
    try (Context context = Context.create()) {
      attend(context, t.good);
      float plain = t.out.get(0);
      for (Attention job : List.of(t.good.withWindow(2), t.good.withNonCausal(true),
          t.good.withSoftmaxScale(2), t.good.withLogitSoftcap(0.5f), t.good.withSinkLogits(sinks),
          t.good.withSinkLogits(Memory.address(sinks, "sinks")),
          t.good.withTokenCounts(Caches.ints(4, 5)))) {
        attend(context, job);
        Check.that(t.out.get(0) != plain, "nothing changed");
      }
      Attention keysAlone = Attention.of(View.of(Caches.KVH, Caches.plane(t.k, Caches.KVH), null), N,
          Caches.QH, 1, Caches.plane(t.q, Caches.QH),
          Plane.of(t.out, DType.F32, 3, Caches.QH * 12, 12));
      attend(context, keysAlone.withValueHeadDim(3));
    }
  }

  static void wrongUseIsRefused() {
    Class<IllegalArgumentException> wrong = IllegalArgumentException.class;
    Class<KvEvictException> refused = KvEvictException.class;
    AttentionTest t = new AttentionTest();
    Plane queries = Caches.plane(t.q, Caches.QH);
    try (Context context = Context.create()) {
      Check.fails(wrong, () -> t.job(-1, 1), "tokenCount is negative: -1");
      Check.fails(wrong, () -> t.good.withWindow(-1), "window is negative: -1");
      Check.fails(wrong, () -> attend(context, t.job(N + 1, 1)), "k", "10", "11");
      Check.fails(wrong, () -> attend(context, t.job(N, QUERIES + 1)), "queries", "3", "4");
      Check.fails(wrong,
          () -> attend(context, Attention.of(t.view, N, Caches.QH, 1, queries,
              Caches.plane(t.out.asReadOnlyBuffer(), Caches.QH))), "out", "read-only");
      Check.fails(wrong, () -> attend(context, t.good.withTokenCounts(Caches.ints(1))),
          "tokenCounts has 1 elements, 2 are needed");
      Check.fails(refused, () -> attend(context, t.good.withValueHeadDim(9)), "v_head_dim 9");
      Check.fails(refused, () -> attend(context, t.good.withSinkLogits(Caches.floats(3))),
          "sink_logits_len 3");
      Check.fails(refused,
          () -> attend(context, t.good.withAttentionSums(Caches.scores(Caches.floats(3 * N), N)).withSumHeads(3)),
          "n_sum_heads 3");
      ByteBuffer workspace = workspace(context, t.good);
      Check.fails(refused,
          () -> context.attend(
              List.of(Attention.of(t.view, N, Caches.QH, QUERIES, queries, queries)), workspace),
          "jobs[0].out overlaps jobs[0].queries");
      Check.fails(refused, () -> context.attend(List.of(t.good), null), "workspace_bytes 0");
    }
  }
}
