package dev.kvevict;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.CharBuffer;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;
import java.util.Objects;

/** The addresses of direct buffers, with the checks that native code cannot make. */
final class Memory {
  private Memory() {}

  /** Address of the element at the buffer's position. Elements are plain bytes to the callee. */
  static long address(Buffer buffer, String name) {
    if (!Objects.requireNonNull(buffer, name).isDirect()) {
      throw new IllegalArgumentException(name + " is not a direct buffer");
    }
    return NativeSupport.addressOf(buffer) + ((long) buffer.position() << shift(buffer));
  }

  /** address() for elements that the callee reads as numbers. */
  static long numbers(Buffer buffer, String name) {
    long address = address(buffer, name);
    if (order(buffer) != ByteOrder.nativeOrder()) {
      throw new IllegalArgumentException(name + " is " + order(buffer) + ", the machine "
          + ByteOrder.nativeOrder() + ": call order(ByteOrder.nativeOrder()) first");
    }
    return address;
  }

  /** numbers() for elements that the callee writes. */
  static long output(Buffer buffer, String name) {
    long address = numbers(buffer, name);
    if (buffer.isReadOnly()) {
      throw new IllegalArgumentException(name + " is read-only");
    }
    return address;
  }

  /** Bytes from the position to the limit. */
  static long bytes(Buffer buffer) {
    return (long) buffer.remaining() << shift(buffer);
  }

  /**
   * Throws unless the context is on the CPU: what CUDA is given has to stay where it is until its
   * work has run, which may be after the call.
   */
  static void requireCpu(Device device, String name) {
    if (device != Device.CPU) {
      throw new IllegalArgumentException(name + " is memory of the host, and the context is on "
          + device + ": pass the address of device memory");
    }
  }

  /** numbers() for memory on the context's device; null stands for none. */
  static long input(Device device, Buffer buffer, String name) {
    if (buffer == null) {
      return 0;
    }
    requireCpu(device, name);
    return numbers(buffer, name);
  }

  /** output() for memory on the context's device. */
  static long output(Device device, Buffer buffer, String name) {
    long address = output(buffer, name);
    requireCpu(device, name);
    return address;
  }

  /** Address of a workspace; null stands for none. */
  static long workspace(Device device, ByteBuffer workspace) {
    if (workspace == null) {
      return 0;
    }
    requireCpu(device, "workspace");
    return address(workspace, "workspace");
  }

  static long workspaceBytes(ByteBuffer workspace) {
    return workspace == null ? 0 : workspace.remaining();
  }

  static IntBuffer allocateInts(int n) {
    return ByteBuffer.allocateDirect(Math.multiplyExact(n, 4))
        .order(ByteOrder.nativeOrder()).asIntBuffer();
  }

  private static int shift(Buffer buffer) {
    if (buffer instanceof ByteBuffer) {
      return 0;
    }
    if (buffer instanceof ShortBuffer || buffer instanceof CharBuffer) {
      return 1;
    }
    return buffer instanceof FloatBuffer || buffer instanceof IntBuffer ? 2 : 3;
  }

  private static ByteOrder order(Buffer buffer) {
    if (buffer instanceof ByteBuffer b) {
      return b.order();
    }
    if (buffer instanceof FloatBuffer b) {
      return b.order();
    }
    if (buffer instanceof ShortBuffer b) {
      return b.order();
    }
    if (buffer instanceof IntBuffer b) {
      return b.order();
    }
    if (buffer instanceof CharBuffer b) {
      return b.order();
    }
    return buffer instanceof LongBuffer b ? b.order() : ((DoubleBuffer) buffer).order();
  }

  /** A count, which the C ABI holds as unsigned. */
  static int count(int value, String name) {
    if (value < 0) {
      throw new IllegalArgumentException(name + " is negative: " + value);
    }
    return value;
  }

  static long count(long value, String name) {
    if (value < 0) {
      throw new IllegalArgumentException(name + " is negative: " + value);
    }
    return value;
  }
}
