package dev.kvevict;

import java.lang.ref.Cleaner;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** A call's arguments stay reachable, even if its caller no longer uses them. */
final class KeepAliveTest {
  private static final int N = 4096;
  private static final int ROW = Caches.KVH * Caches.D;
  private static final Cleaner CLEANER = Cleaner.create();

  private KeepAliveTest() {}

  /** Buffers that the collector has found unreachable, and a context whose calls collect. */
  private static final class Watch {
    private final AtomicInteger lost = new AtomicInteger();
    private final AtomicInteger lostInCalls = new AtomicInteger();
    private final AtomicInteger calls = new AtomicInteger();

    <B extends Buffer> B on(B buffer) {
      CLEANER.register(buffer, lost::incrementAndGet);
      return buffer;
    }

    Context context() {
      return Context.builder().parallel(this::collect, 2).build();
    }

    private void collect(Runnable work) {
      calls.incrementAndGet();
      for (int i = 0; i < 3; ++i) {
        System.gc();
        try {
          Thread.sleep(5);
        } catch (InterruptedException e) {
          throw new AssertionError(e);
        }
      }
      lostInCalls.set(lost.get());
      work.run();
    }

    void check() {
      Check.that(calls.get() > 0, "the calls had no work to share");
      Check.equal(0, lostInCalls.get());
    }

    View view() {
      return Caches.view(on(Caches.random(N * ROW, 1)), on(Caches.random(N * ROW, 2)));
    }
  }

  static void scoring() {
    Watch watch = new Watch();
    try (Context context = watch.context();
        Plan plan = Caches.plan(context, 1, N, "snapkv:budget=0.5,window=4")) {
      plan.score(jobs(watch), watch.on(plan.workspace(Operation.SCORE).allocate()));
    }
    watch.check();
  }

  private static List<ScoreJob> jobs(Watch watch) {
    return List.of(ScoreJob.of(0, N, watch.on(Caches.floats(Caches.KVH * N)))
        .withView(watch.view()).withTokenCounts(watch.on(Caches.ints(N, N)))
        .withInputs(window(watch)));
  }

  private static SignalInputs window(Watch watch) {
    FloatBuffer queries = watch.on(Caches.random(4 * Caches.QH * Caches.D, 3));
    FloatBuffer lse = watch.on(Caches.floats(4 * Caches.QH));
    return Caches.queries(Caches.plane(queries, Caches.QH))
        .withRowLse(Plane.of(lse, DType.F32, 1, Caches.QH * 4, 4));
  }

  static void selecting() {
    Watch watch = new Watch();
    try (Context context = watch.context()) {
      context.select(options(SelectOptions.of(N), watch),
          KeepLists.of(watch.on(Caches.ints(new int[N])), 2, N / 2)
              .withCounts(watch.on(Caches.ints(N / 2, 7))),
          watch.on(context.selectWorkspace(N, 2).allocate()));
    }
    watch.check();
  }

  private static SelectOptions options(SelectOptions options, Watch watch) {
    return options.withScores(watch.on(Caches.random(Caches.KVH * N, 1)))
        .withTokenCounts(watch.on(Caches.ints(N, N - 1)));
  }

  static void evicting() {
    Watch watch = new Watch();
    try (Context context = watch.context();
        Plan plan = Caches.plan(context, 1, N, "custom:sink=0,budget=0.5");
        Sequence sequence = plan.newSequence()) {
      sequence.append(N);
      sequence.evict(List.of(watch.view()), options(watch),
          watch.on(plan.workspace(Operation.EVICT).allocate()));
    }
    watch.check();
  }

  private static EvictOptions options(Watch watch) {
    FloatBuffer scores = watch.on(Caches.random(Caches.KVH * N, 3));
    return EvictOptions.NONE.withProtected(7)
        .withInputs(List.of(SignalInputs.NONE.withScores(Caches.scores(scores, N))));
  }

  static void evictingByQueriesHandedOver() {
    Watch watch = new Watch();
    try (Context context = watch.context();
        Plan plan = Caches.plan(context, 1, N, "snapkv:budget=0.5,window=4");
        Sequence sequence = plan.newSequence()) {
      sequence.append(N);
      sequence.evict(List.of(watch.view()),
          EvictOptions.NONE.withInputs(List.of(window(watch))),
          watch.on(plan.workspace(Operation.EVICT).allocate()));
    }
    watch.check();
  }

  static void compacting() {
    Watch watch = new Watch();
    try (Context context = watch.context()) {
      context.compact(moves(watch));
    }
    watch.check();
  }

  static void reordering() {
    Watch watch = new Watch();
    try (Context context = watch.context()) {
      context.reorder(moves(watch), watch.on(workspace(context)));
    }
    watch.check();
  }

  static void rotating() {
    Watch watch = new Watch();
    Geometry geometry = Geometry.builder().queryHeads(Caches.QH).kvHeads(Caches.KVH).headDim(Caches.D)
        .layers(1).maxTokens(N).build().withRope(RopeLayout.HALF, 1, 0.1f, 0.01f, 0.001f);
    try (Context context = watch.context(); Plan plan = context.newPlan(geometry, Policy.of("none"))) {
      plan.rotate(rotations(watch));
    }
    watch.check();
  }

  static void attending() {
    Watch watch = new Watch();
    try (Context context = watch.context()) {
      context.attend(
          attention(watch), watch.on(Caches.bytes((1 << 20) + 64).alignedSlice(64)));
    }
    watch.check();
  }

  private static List<Attention> attention(Watch watch) {
    int n = Caches.QH * Caches.D;
    return List.of(Attention.of(watch.view(), N, Caches.QH, 1,
        Caches.plane(watch.on(Caches.floats(n)), Caches.QH),
        Caches.plane(watch.on(Caches.floats(n)), Caches.QH))
        .withTokenCounts(watch.on(Caches.ints(N, N - 1)))
        .withSinkLogits(watch.on(Caches.floats(Caches.QH))));
  }

  private static List<Rotation> rotations(Watch watch) {
    return List.of(Rotation.of(0, watch.view(), N, watch.on(Caches.ints(new int[N])))
        .withTokenCounts(watch.on(Caches.ints(N, N - 1))));
  }

  /** Two slots of a view that is not watched. */
  private static ByteBuffer workspace(Context context) {
    View view = Caches.view(Caches.floats(2 * ROW), Caches.floats(2 * ROW));
    return context.reorderWorkspace(Caches.sized(view, 1, 2)).allocate();
  }

  private static List<Move> moves(Watch watch) {
    KeepLists keep = KeepLists.of(watch.on(Caches.ints(1, 5)), 1, 2);
    return List.of(Move.of(watch.view(), N, keep.withCounts(watch.on(Caches.ints(2))))
        .withTokenCounts(watch.on(Caches.ints(N, N - 1))));
  }
}
