package dev.kvevict;

import java.lang.ref.Cleaner;
import java.lang.ref.WeakReference;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BiConsumer;

/**
 * The callbacks of a context, and its device. Native code knows the hooks by a number;
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
  final int threadCount;

  Hooks(Device device, BiConsumer<LogLevel, String> logger, Executor executor, int threadCount) {
    this.device = device;
    this.logger = logger;
    this.executor = executor;
    this.threadCount = threadCount;
    ALL.put(id, new WeakReference<>(this));
    Long key = id; // and not `this`
    CLEANER.register(this, () -> ALL.remove(key));
  }

  /** Called from native code. What a logger throws has nowhere to go and is dropped there. */
  static void log(int level, String message, long id) {
    ALL.get(id).get().logger.accept(CEnum.of(LogLevel.class, level), message);
  }

  /**
   * Called from native code, whose calling thread then does what no helper has taken. What this
   * throws, the call throws when its work is done.
   */
  static void askForHelp(int itemCount, long job, long id) {
    Hooks hooks = ALL.get(id).get();
    int workers = Math.min(hooks.threadCount, itemCount);
    Runnable help = () -> NativeSupport.help(job, workers);
    try {
      for (int i = 1; i < workers; ++i) {
        hooks.executor.execute(help);
      }
    } catch (RejectedExecutionException e) {
      // An executor's word for being busy.
    }
  }
}
