package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Objects;

/**
 * Memory of C structs, whose fields are written and read at their offsets, see {@link Abi}. It
 * lives as long as the object, which a try block keeps reachable until its end.
 */
final class Struct implements AutoCloseable {
  final long address;
  private final ByteBuffer bytes;

  /** Zeroed memory. */
  Struct(int size) {
    bytes = ByteBuffer.allocateDirect(size).order(ByteOrder.nativeOrder());
    address = NativeSupport.addressOf(bytes);
  }

  /** Zeroed memory of a struct that begins with its own size. */
  static Struct sized(int size) {
    return new Struct(size).putInt(0, size);
  }

  /** A copy of memory of the library's; of none where size is 0. */
  static Struct copyOf(long address, int size) {
    Struct struct = new Struct(size);
    if (size > 0) {
      struct.bytes.put(0, NativeSupport.bytesAt(address, size), 0, size);
    }
    return struct;
  }

  /** A zero-terminated text; null for null. */
  static Struct text(String text) {
    if (text == null) {
      return null;
    }
    byte[] utf8 = text.getBytes(StandardCharsets.UTF_8);
    Struct struct = new Struct(utf8.length + 1);
    struct.bytes.put(0, utf8);
    return struct;
  }

  int size() {
    return bytes.capacity();
  }

  static long addressOrNull(Struct struct) {
    return struct == null ? 0 : struct.address;
  }

  Struct putInt(int offset, int value) {
    bytes.putInt(offset, value);
    return this;
  }

  Struct putEnum(int offset, CEnum value) {
    return putInt(offset, value.value());
  }

  Struct putEnum(int offset, CEnum value, String name) {
    return putEnum(offset, Objects.requireNonNull(value, name));
  }

  Struct putCount(int offset, int value, String name) {
    return putInt(offset, Memory.count(value, name));
  }

  Struct putFlag(int offset, boolean value) {
    return putInt(offset, value ? 1 : 0);
  }

  Struct putFloat(int offset, float value) {
    bytes.putFloat(offset, value);
    return this;
  }

  Struct putLong(int offset, long value) {
    bytes.putLong(offset, value);
    return this;
  }

  Struct putDouble(int offset, double value) {
    bytes.putDouble(offset, value);
    return this;
  }

  int intAt(int offset) {
    return bytes.getInt(offset);
  }

  <E extends CEnum> E enumAt(int offset, Class<E> type) {
    return CEnum.of(type, intAt(offset));
  }

  boolean flagAt(int offset) {
    return intAt(offset) != 0;
  }

  float[] floatsAt(int offset, int count) {
    float[] values = new float[count];
    bytes.duplicate().position(offset).order(ByteOrder.nativeOrder()).asFloatBuffer().get(values);
    return values;
  }

  float floatAt(int offset) {
    return bytes.getFloat(offset);
  }

  long longAt(int offset) {
    return bytes.getLong(offset);
  }

  double doubleAt(int offset) {
    return bytes.getDouble(offset);
  }

  String textAt(int offset) {
    return NativeSupport.stringAt(longAt(offset));
  }

  Struct copy() {
    Struct copy = new Struct(bytes.capacity());
    copy.copyFrom(this, 0);
    return copy;
  }

  /** Whether two structs have the same bytes. */
  @Override
  public boolean equals(Object other) {
    return other instanceof Struct that && bytes.equals(that.bytes);
  }

  @Override
  public int hashCode() {
    return bytes.hashCode();
  }

  /** Copies all of another struct to an offset of this one. */
  void copyFrom(Struct other, int offset) {
    bytes.put(offset, other.bytes, 0, other.bytes.capacity());
  }

  @Override
  public void close() {
    Reference.reachabilityFence(this);
  }
}
