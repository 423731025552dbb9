package dev.kvevict;

import java.nio.Buffer;

/** Native methods beside the generated ones: jni_support.c. */
final class NativeSupport {
  static {
    NativeLoader.load();
  }

  private NativeSupport() {}

  /** Address of element 0 of a direct buffer, whatever its position. */
  static native long addressOf(Buffer buffer);

  /** The zero-terminated text at an address; null at 0. */
  static native String stringAt(long address);

  /** Calls a kvevict_task_fn. */
  static native void runTask(long run, long task, int item, int worker);

  /** A kvevict_log_fn that calls {@link Hooks#log}. */
  static native long logHook();

  /** A kvevict_parallel_fn that calls {@link Hooks#parallel}. */
  static native long parallelHook();
}
