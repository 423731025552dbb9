package dev.kvevict;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.atomic.AtomicInteger;

/** Log sink and parallel runner. */
final class HooksTest {
  private static final int N = 512;

  private HooksTest() {}

  static void logLinesArrive() {
    List<String> lines = Collections.synchronizedList(new ArrayList<>());
    try (Context context = Context.builder()
            .logger(LogLevel.DEBUG, (level, line) -> lines.add(level + " " + line)).build();
        Plan plan = Caches.plan(context, 1, 64, "snapkv:budget=16,window=4")) {
      Check.that(lines.get(0).startsWith("INFO context on cpu"), lines.get(0));
      Check.that(lines.size() >= 2 && lines.get(1).startsWith("DEBUG"), lines.toString());
      Check.that(plan.policy() != null, "plan");
    }
  }

  static void loggerThatThrowsIsSurvived() {
    Context.builder().logger(LogLevel.DEBUG, (level, line) -> {
      throw new IllegalStateException(line);
    }).build().close();
  }

  private static FloatBuffer scores(Context context) {
    try (Plan plan = Caches.plan(context, 1, N, "snapkv:budget=64,window=32")) {
      int row = Caches.KVH * Caches.D;
      FloatBuffer scores = Caches.floats(Caches.KVH * N);
      ByteBuffer workspace = plan.allocateWorkspace(Operation.SCORE_WINDOW);
      plan.scoreWindow(Caches.plane(Caches.random(32 * Caches.QH * Caches.D, 1), Caches.QH), null,
          Caches.view(Caches.random(N * row, 2), Caches.random(N * row, 3)), N, scores, workspace);
      return scores;
    }
  }

  static void everyRunnerGivesTheSameBytes() {
    FloatBuffer alone;
    try (Context context = Context.create()) {
      alone = scores(context);
    }
    AtomicInteger tasks = new AtomicInteger();
    ExecutorService pool = Executors.newFixedThreadPool(3);
    try (Context threads = Context.builder().parallel(task -> {
          tasks.incrementAndGet();
          pool.execute(task);
        }, 4).build();
        Context lazy = Context.builder().parallel(task -> {}, 4).build();
        Context inline = Context.builder().parallel(Runnable::run, 4).build();
        Context refusing = Context.builder().parallel(task -> {
          throw new RejectedExecutionException();
        }, 4).build()) {
      for (int i = 0; i < 20; ++i) {
        Check.equal(alone, scores(threads));
      }
      Check.equal(alone, scores(lazy));
      Check.equal(alone, scores(inline));
      Check.equal(alone, scores(refusing));
    } finally {
      pool.shutdown();
    }
    Check.that(tasks.get() > 0, "the executor was never asked");
  }

  static void arraysAreRefusedBesideARunner() {
    try (Context context = Context.builder().parallel(Runnable::run, 2).build();
        Plan plan = Caches.plan(context, 1, 64, "custom:budget=6");
        View view = Caches.view(Caches.floats(1024), Caches.floats(1024))) {
      Check.fails(IllegalStateException.class,
          () -> context.compact(view, 64, new int[] {0}, 1), "pass direct buffers");
      Check.fails(IllegalStateException.class,
          () -> context.reorder(view, 64, new int[] {0}, 1, null), "pass direct buffers");
      Check.fails(IllegalStateException.class,
          () -> plan.select(0, new float[128], 64, null, new int[12], null),
          "pass direct buffers");
    }
  }

  static void tooManyThreads() {
    Check.fails(KvEvictException.class,
        () -> Context.builder().parallel(Runnable::run, 5000).build(), "5000");
  }
}
