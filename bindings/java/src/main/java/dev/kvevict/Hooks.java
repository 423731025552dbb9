package dev.kvevict;

import java.lang.ref.Cleaner;
import java.lang.ref.WeakReference;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BiConsumer;

/**
 * What a context calls back, and the device it works on. Native code knows the hooks by a number;
 * every handle made from the context holds them, so that they are there whenever it can call.
 */
final class Hooks {
  private static final Cleaner CLEANER = Cleaner.create();
  private static final AtomicLong LAST_ID = new AtomicLong();
  private static final Map<Long, WeakReference<Hooks>> ALL = new ConcurrentHashMap<>();

  final long id = LAST_ID.incrementAndGet();
  final Device device;
  final BiConsumer<LogLevel, String> logger;
  final Executor executor;
  final int nThreads;

  Hooks(Device device, BiConsumer<LogLevel, String> logger, Executor executor, int nThreads) {
    this.device = device;
    this.logger = logger;
    this.executor = executor;
    this.nThreads = nThreads;
    ALL.put(id, new WeakReference<>(this));
    Long key = id; // and not `this`
    CLEANER.register(this, () -> ALL.remove(key));
  }

  /**
   * Throws if work may call the executor, which an array pinned by the caller forbids, or run after
   * the call, when it is pinned no more.
   *
   * @param name of an array that the call was given
   */
  void forbidArrays(String name) {
    Memory.requireCpu(device, name);
    if (executor != null) {
      throw new IllegalStateException(
          "this context has a parallel runner: pass direct buffers, not arrays");
    }
  }

  /** Called from native code. What a logger throws has nowhere to go and is dropped there. */
  static void log(int level, String message, long id) {
    ALL.get(id).get().logger.accept(LogLevel.values()[level], message);
  }

  /** Called from native code; returns when every item is done. */
  static void parallel(int nItems, long run, long task, long id) {
    Hooks hooks = ALL.get(id).get();
    Job job = new Job(nItems, run, task);
    for (int helper = 1; helper < Math.min(hooks.nThreads, nItems); ++helper) {
      try {
        hooks.executor.execute(job::help);
      } catch (RuntimeException e) {
        break; // this thread does the rest
      }
    }
    job.work(0);
    job.await();
  }

  /**
   * One parallel call. A helper that starts late finds no item left and does not touch the task,
   * which is gone by then; so nobody waits for helpers that have not begun.
   */
  private static final class Job {
    private final int nItems;
    private final long run;
    private final long task;
    private final AtomicInteger nextItem = new AtomicInteger();
    private final AtomicInteger lastWorker = new AtomicInteger();
    private final AtomicInteger nDone = new AtomicInteger();

    Job(int nItems, long run, long task) {
      this.nItems = nItems;
      this.run = run;
      this.task = task;
    }

    void help() {
      work(lastWorker.incrementAndGet());
    }

    void work(int worker) {
      int item;
      while ((item = nextItem.getAndIncrement()) < nItems) {
        NativeSupport.runTask(run, task, item, worker);
        if (nDone.incrementAndGet() == nItems) {
          synchronized (this) {
            notifyAll();
          }
        }
      }
    }

    synchronized void await() {
      boolean interrupted = false;
      while (nDone.get() < nItems) {
        try {
          wait();
        } catch (InterruptedException e) {
          interrupted = true; // the items move memory and cannot be left
        }
      }
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }
}
