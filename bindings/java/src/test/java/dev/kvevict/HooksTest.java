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

  /** A window to score, and the scores. */
  private static final class Window implements AutoCloseable {
    final FloatBuffer scores = Caches.floats(Caches.KVH * N);
    private final Plane queries =
        Caches.plane(Caches.random(32 * Caches.QH * Caches.D, 1), Caches.QH);
    private final View view = Caches.view(
        Caches.random(N * Caches.KVH * Caches.D, 2), Caches.random(N * Caches.KVH * Caches.D, 3));
    private final Plan plan;
    private final ByteBuffer workspace;

    Window(Context context) {
      plan = Caches.plan(context, 1, N, "snapkv:budget=64,window=32");
      workspace = plan.workspace(Operation.SCORE).allocate();
    }

    void score() {
      plan.score(Caches.jobs(view, N, queries, scores), workspace);
    }

    @Override
    public void close() {
      plan.close();
    }
  }

  private static FloatBuffer scores(Context context) {
    try (Window window = new Window(context)) {
      window.score();
      return window.scores;
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

  /** Runs a task in several threads at once, and returns when all have run it. */
  private static void runAtOnce(Runnable task, int threadCount) {
    AtomicInteger ready = new AtomicInteger();
    List<Thread> threads = new ArrayList<>();
    for (int i = 0; i < threadCount; ++i) {
      threads.add(new Thread(() -> {
        ready.incrementAndGet();
        while (ready.get() < threadCount) {
          Thread.yield();
        }
        task.run();
      }));
    }
    threads.forEach(Thread::start);
    for (Thread thread : threads) {
      try {
        thread.join();
      } catch (InterruptedException e) {
        throw new AssertionError(e);
      }
    }
  }

  /** Each worker has its part of the workspace: one too many would write behind the last. */
  static void tasksMayRunAgain() {
    final int heads = 8;
    final int dim = 64;
    final int n = 4 * N;
    List<Runnable> late = new ArrayList<>();
    Geometry geometry = Geometry.builder().layers(1).queryHeads(heads).kvHeads(heads).headDim(dim)
        .maxTokens(n).build();
    try (Context context = Context.builder().parallel(task -> {
          late.add(task);
          runAtOnce(task, 4);
        }, 2).build();
        Plan plan = context.newPlan(geometry, Policy.parse("snapkv:budget=64,window=32"))) {
      Plane k = Plane.of(
          Caches.random(n * heads * dim, 1), DType.F32, dim, heads * dim * 4, dim * 4);
      Plane v = Plane.of(
          Caches.random(n * heads * dim, 2), DType.F32, dim, heads * dim * 4, dim * 4);
      final int size = plan.workspace(Operation.SCORE).allocate().capacity();
      ByteBuffer all = ByteBuffer.allocateDirect(4 * size + 64);
      int skip = Math.floorMod(-NativeSupport.addressOf(all), 64);
      for (int i = 0; i < 10; ++i) {
        plan.score(Caches.jobs(View.of(heads, k, v), n, k, Caches.floats(heads * n)),
            all.slice(skip, size));
      }
      Check.that(late.size() >= 10, late.size() + " tasks of 10 calls");
      late.forEach(Runnable::run);
      int behind = skip + size;
      Check.equal(ByteBuffer.allocate(all.capacity() - behind),
          all.slice(behind, all.capacity() - behind));
    }
  }

  private static final class Checked extends Exception {
    private static final long serialVersionUID = 1;
  }

  @SuppressWarnings("unchecked")
  private static <T extends Throwable> void sneak(Throwable e) throws T {
    throw (T) e;
  }

  /** The work is done all the same, and the call throws what its executor threw. */
  static void whatTheExecutorThrowsTheCallThrows() throws Exception {
    FloatBuffer alone;
    try (Context context = Context.create()) {
      alone = scores(context);
    }
    for (Throwable e : List.of(new AssertionError("no"), new OutOfMemoryError("no"),
        new StackOverflowError(), new IllegalStateException("no"), new Checked())) {
      for (boolean after : new boolean[] {false, true}) {
        try (Context context = Context.builder().parallel(task -> {
              if (after) {
                task.run();
              }
              HooksTest.<RuntimeException>sneak(e);
            }, 4).build();
            Window window = new Window(context)) {
          Check.that(Check.fails(e.getClass(), window::score) == e, "another one");
          Check.equal(alone, window.scores);
          Check.equal(1024, KvEvict.autoBudget(2048, 1L << 30)); // nothing is left of it
        }
      }
    }
  }

  static void whatTheExecutorThrowsStaysInItsThread() throws Exception {
    Thread victim = Thread.currentThread();
    AtomicInteger thrown = new AtomicInteger();
    try (Context context = Context.builder().parallel(task -> {
          if (Thread.currentThread() == victim) {
            thrown.incrementAndGet();
            throw new AssertionError("of the victim");
          }
          task.run();
        }, 4).build();
        Window ours = new Window(context)) {
      AtomicInteger failed = new AtomicInteger();
      Thread other = new Thread(() -> {
        try (Window theirs = new Window(context)) {
          for (int i = 0; i < 100; ++i) {
            theirs.score();
          }
        } catch (Throwable e) {
          failed.incrementAndGet();
        }
      });
      other.start();
      for (int i = 0; i < 100; ++i) {
        Check.fails(AssertionError.class, ours::score, "of the victim");
      }
      other.join();
      Check.equal(0, failed.get());
      Check.that(thrown.get() >= 100, "the executor was not asked");
    }
  }

  /** A call that the executor makes itself is another call. */
  static void callsOfTheExecutorAreTheirOwn() {
    List<Throwable> inner = new ArrayList<>();
    AtomicInteger asked = new AtomicInteger();
    try (Context context = Context.builder().parallel(task -> {
          try {
            Policy.parse("snapkv");
          } catch (Throwable e) {
            inner.add(e);
          }
          throw new AssertionError("part " + asked.incrementAndGet());
        }, 2).build();
        Plan plan = Caches.plan(context, 2, N, "snapkv:budget=64,window=4");
        Sequence sequence = plan.newSequence()) {
      sequence.beginObserving();
      int row = Caches.KVH * Caches.D;
      List<View> views = new ArrayList<>();
      for (int layer = 0; layer < 2; ++layer) {
        sequence.observe(
            layer, Caches.plane(Caches.random(N * Caches.QH * Caches.D, 1), Caches.QH), N, 0);
        views.add(Caches.view(Caches.random(N * row, 2), Caches.random(N * row, 3)));
      }
      sequence.append(N);
      ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
      Check.fails(AssertionError.class, () -> sequence.evict(views, workspace), "part 1");
      Check.that(asked.get() > 1, "the eviction had one part");
      Check.equal(List.of(), inner);
      Check.equal(64, sequence.storedLength(1)); // it is done
    }
  }

  static void tooManyThreads() {
    Check.fails(KvEvictException.class,
        () -> Context.builder().parallel(Runnable::run, 5000).build(), "5000");
  }
}
