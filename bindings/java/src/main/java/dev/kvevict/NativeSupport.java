package dev.kvevict;

import java.nio.Buffer;
import java.nio.ByteBuffer;

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

  /** So many bytes at an address, which live as long as those do. */
  static native ByteBuffer bytesAt(long address, int bytes);

  /** Takes part in a job, if it is still open and fewer than so many threads do. */
  static native void help(long job, int maxWorkers);

  /** A kvevict_log_fn that calls {@link Hooks#log}. */
  static native long logHook();

  /** A kvevict_parallel_fn that calls {@link Hooks#askForHelp}. */
  static native long parallelHook();

  /** A kvevict_prefill_fn that calls {@link Reading#forward}. */
  static native long forwardHook();
}
