package dev.kvevict;

import java.nio.Buffer;
import java.nio.IntBuffer;

/** 32-bit numbers that calls read or write: a buffer's, or those at an address. */
final class Numbers {
  final long length;
  private final Buffer buffer; // null for an address
  private final IntBuffer ints; // its content, whose position stays; null unless it has ints
  private final long address;

  private Numbers(Buffer buffer, long address, long length) {
    this.buffer = buffer;
    ints = buffer instanceof IntBuffer i ? i.slice() : null;
    this.address = address;
    this.length = length;
  }

  static Numbers of(Buffer buffer, String name) {
    return new Numbers(buffer, Memory.numbers(buffer, name), buffer.remaining());
  }

  static Numbers at(long address, long length, String name) {
    return new Numbers(null, address, Memory.count(length, name));
  }

  /** The address, for a call on a device. */
  long input(Device device, String name) {
    if (buffer != null) {
      Memory.requireCpu(device, name);
    }
    return address;
  }

  /** input() for numbers that the call writes. */
  long output(Device device, String name) {
    if (buffer != null && buffer.isReadOnly()) {
      throw new IllegalArgumentException(name + " is read-only");
    }
    return input(device, name);
  }

  /**
   * The number of tokens of a head, as far as is known: 0 at an address, all without numbers, and no
   * more than all.
   */
  static int tokensOf(Numbers counts, int head, int all) {
    if (counts == null) {
      return all;
    }
    return counts.ints == null || head >= counts.length
        ? 0 : Math.min(counts.ints.get(head), all);
  }

  /** The address of so many numbers; 0 if there are none. */
  static long each(Numbers numbers, Device device, int n, String name) {
    if (numbers == null) {
      return 0;
    }
    if (numbers.length < n) {
      throw new IllegalArgumentException(
          name + " has " + numbers.length + " elements, " + n + " are needed");
    }
    return numbers.input(device, name);
  }
}
