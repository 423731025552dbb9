package dev.kvevict;

import java.nio.ByteBuffer;

/**
 * The memory that a call works in. It runs in any size from the least on, to the same bytes, and
 * gains nothing from more than the best. Memory for more tokens serves fewer; calls that run at the
 * same time must not share it.
 */
public sealed interface Workspace permits Records.Workspace {
  /** {@return the alignment of the address in bytes} */
  int alignment();

  /** {@return bytes; 0: the call can do without, and null may be passed} */
  long leastBytes();

  /** {@return bytes} */
  long bestBytes();

  /**
   * Memory of the best size, for calls on the CPU.
   *
   * @return a direct buffer of the right size and alignment
   * @throws ArithmeticException if it would exceed a buffer's 2 GiB: then pass an address
   * @throws IllegalStateException if the context is on CUDA: then pass device memory's address
   */
  ByteBuffer allocate();
}
