package dev.kvevict;

import java.lang.ref.Cleaner;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** What a call works on stays reachable, even where its caller has no more use for it. */
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
      plan.scoreWindow(
          Caches.plane(watch.on(Caches.random(4 * Caches.QH * Caches.D, 3)), Caches.QH), null,
          watch.view(), N, watch.on(Caches.floats(Caches.KVH * N)),
          watch.on(plan.allocateWorkspace(Operation.SCORE_WINDOW)));
    }
    watch.check();
  }

  static void selecting() {
    Watch watch = new Watch();
    try (Context context = watch.context();
        Plan plan = Caches.plan(context, 1, N, "custom:budget=0.5")) {
      plan.select(0, watch.on(Caches.random(Caches.KVH * N, 1)), N,
          watch.on(Caches.bytes(4).asIntBuffer()),
          watch.on(Caches.bytes(4 * Caches.KVH * N).asIntBuffer()),
          watch.on(plan.allocateWorkspace(Operation.SELECT)));
    }
    watch.check();
  }

  static void evicting() {
    Watch watch = new Watch();
    try (Context context = watch.context();
        Plan plan = Caches.plan(context, 1, N, "custom:budget=0.5");
        Sequence sequence = plan.newSequence()) {
      sequence.append(N);
      sequence.evict(List.of(watch.view()), options(watch),
          watch.on(plan.allocateWorkspace(Operation.EVICT)));
    }
    watch.check();
  }

  private static EvictOptions options(Watch watch) {
    FloatBuffer scores = watch.on(Caches.random(Caches.KVH * N, 3));
    return EvictOptions.NONE.withScores(scores, (long) Caches.KVH * N, N).withProtected(7);
  }

  static void compacting() {
    Watch watch = new Watch();
    try (Context context = watch.context()) {
      context.compact(watch.view(), N, watch.on(keep()), 1);
    }
    watch.check();
  }

  static void reordering() {
    Watch watch = new Watch();
    try (Context context = watch.context()) {
      context.reorder(watch.view(), N, watch.on(keep()), 1, watch.on(workspace(context)));
    }
    watch.check();
  }

  /** For two slots of a view that is not watched. */
  private static ByteBuffer workspace(Context context) {
    return context.allocateReorderWorkspace(
        Caches.view(Caches.floats(2 * ROW), Caches.floats(2 * ROW)), 2, 1);
  }

  private static IntBuffer keep() {
    ByteBuffer slots = Caches.bytes(8);
    return slots.asIntBuffer().put(0, 1).put(1, 5);
  }
}
