package dev.kvevict;

import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** Closing: in any order, more than once, never under a call; or left to the collector. */
final class HandleTest {
  private HandleTest() {}

  /** Counts what would destroy it. */
  private static final class Counted extends Handle {
    Counted(AtomicInteger destroyed) {
      super(1, pointer -> destroyed.incrementAndGet(), null);
    }
  }

  static void twice() {
    Context context = Context.create();
    context.close();
    context.close();
    AtomicInteger destroyed = new AtomicInteger();
    Counted handle = new Counted(destroyed);
    handle.close();
    handle.close();
    Check.equal(1, destroyed.get());
  }

  static void useAfterClose() {
    Context context = Context.create();
    Plan plan = Caches.plan(context, 1, 64, "snapkv:budget=16,window=4");
    Sequence sequence = plan.newSequence();
    View view = Caches.view(Caches.floats(1024), Caches.floats(1024));
    context.close();
    sequence.append(1); // keeps what it needs
    plan.newSequence().close();
    plan.close();
    sequence.append(1);
    Check.equal(2, sequence.logicalLength());
    sequence.close();
    view.close();
    view.close();
    Class<IllegalStateException> closed = IllegalStateException.class;
    Check.fails(closed, context::prepare, "this Context is closed");
    Check.fails(closed, () -> plan.workspace(Operation.EVICT).bestBytes(), "this Plan is closed");
    Check.fails(closed, plan::newSequence, "this Plan is closed");
    Check.fails(closed, sequence::logicalLength, "this Sequence is closed");
    Check.fails(closed, () -> sequence.observe(0, Caches.plane(Caches.floats(32), 4), 1, 0),
        "this Sequence is closed");
    Check.fails(closed, () -> view.validate(0), "this View is closed");
    try (Context open = Context.create()) {
      Check.fails(closed, () -> open.compact(Caches.moves(view, 4, 1, 0)), "this View is closed");
      Check.fails(closed, () -> open.prepare(plan), "this Plan is closed");
      open.prepare(); // the failed call has left it
    }
  }

  static void underACall() {
    AtomicInteger destroyed = new AtomicInteger();
    Counted handle = new Counted(destroyed);
    handle.enter();
    handle.enter();
    handle.close();
    Check.fails(IllegalStateException.class, handle::enter, "closed");
    handle.leave();
    Check.equal(0, destroyed.get());
    handle.leave();
    Check.equal(1, destroyed.get());
  }

  static void oneThreadAtATime() {
    Counted handle = new Counted(new AtomicInteger());
    handle.enterAlone();
    Check.fails(IllegalStateException.class, handle::enterAlone, "in use by another call");
    handle.leave();
    handle.enterAlone();
  }

  static void leftToTheCollector() throws InterruptedException {
    AtomicInteger destroyed = new AtomicInteger();
    for (int i = 0; i < 8; ++i) {
      new Counted(destroyed);
    }
    for (int i = 0; destroyed.get() < 8 && i < 120_000; ++i) {
      System.gc();
      Thread.sleep(5);
    }
    Check.equal(8, destroyed.get());
  }

  /** Each thread gets the text of its own failure. */
  static void errorsOfManyThreads() throws InterruptedException {
    AtomicInteger wrong = new AtomicInteger();
    List<Thread> threads = java.util.stream.IntStream.range(0, 8).mapToObj(t -> new Thread(() -> {
      for (int i = 0; i < 200; ++i) {
        String typo = "snapkv:typo" + t + "=" + i;
        try {
          Policy.parse(typo);
          wrong.incrementAndGet();
        } catch (KvEvictException e) {
          if (!e.getMessage().contains("typo" + t)) {
            wrong.incrementAndGet();
          }
        }
      }
    })).toList();
    threads.forEach(Thread::start);
    for (Thread thread : threads) {
      thread.join();
    }
    Check.equal(0, wrong.get());
  }

  static void missingDeviceSaysWhy() {
    Context.Builder nowhere = Context.builder().device(Device.CUDA).libcudaPath("/nowhere/libcuda");
    Check.fails(KvEvictException.class, nowhere::build, "UNAVAILABLE: ", "/nowhere/libcuda");
  }
}
