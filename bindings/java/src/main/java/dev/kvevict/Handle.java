package dev.kvevict;

import java.lang.ref.Cleaner;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.LongConsumer;

/**
 * An object of the native library. It is destroyed by close(), or when it has become unreachable,
 * but never under a call: then the last call does it.
 */
abstract class Handle implements AutoCloseable {
  private static final Cleaner CLEANER = Cleaner.create();

  private final State state;
  private final Cleaner.Cleanable cleanable;

  /**
   * @param pointer what a create function returned
   * @param destroy its destroy function
   * @param owner the owner that must live as long as the pointer, or null
   */
  Handle(long pointer, LongConsumer destroy, Object owner) {
    state = new State(pointer, destroy, owner);
    cleanable = CLEANER.register(this, state);
  }

  /** The pointer, which stays valid until leave(). */
  final long enter() {
    return state.enter(this, false);
  }

  /** enter() for objects that serve one thread at a time. */
  final long enterAlone() {
    return state.enter(this, true);
  }

  final void leave() {
    state.leave();
  }

  /** Lets the callback of a lone call use the object, one call at a time, until takeBack(). */
  final void lend() {
    state.outer = 1;
  }

  final boolean isLent() {
    return state.outer != 0;
  }

  final void takeBack() {
    state.outer = 0;
  }

  /** Throws if a call that entered a lent object is still under way. */
  final void requireAlone() {
    if ((state.calls.get() & ~State.CLOSED) != 1) {
      throw new IllegalStateException(State.name(this) + " is in use by another call");
    }
  }

  final boolean isClosed() {
    return state.calls.get() < 0;
  }

  /** Releases the native object; a second call does nothing. */
  @Override
  public void close() {
    cleanable.clean();
  }

  /** Must not refer to the handle, which would then stay reachable. */
  private static final class State implements Runnable {
    private static final int CLOSED = Integer.MIN_VALUE;

    private final long pointer;
    private final LongConsumer destroy;

    @SuppressWarnings("unused") // held, not read
    private final Object owner;

    /** Calls under way, plus CLOSED. */
    private final AtomicInteger calls = new AtomicInteger();

    /** 1 while a lone call's callback may enter as well. */
    private volatile int outer;

    State(long pointer, LongConsumer destroy, Object owner) {
      this.pointer = pointer;
      this.destroy = destroy;
      this.owner = owner;
    }

    long enter(Handle handle, boolean alone) {
      int now;
      do {
        now = calls.get();
        if (now < 0) {
          throw new IllegalStateException(name(handle) + " is closed");
        }
        if (alone && now > outer) {
          throw new IllegalStateException(name(handle) + " is in use by another call");
        }
      } while (!calls.compareAndSet(now, now + 1));
      return pointer;
    }

    void leave() {
      if (calls.decrementAndGet() == CLOSED) {
        destroy.accept(pointer);
      }
    }

    @Override
    public void run() {
      if (calls.getAndUpdate(now -> now | CLOSED) == 0) {
        destroy.accept(pointer);
      }
    }

    private static String name(Handle handle) {
      return "this " + handle.getClass().getSimpleName();
    }
  }
}
