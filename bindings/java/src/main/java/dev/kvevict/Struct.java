package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Objects;

/**
 * Memory of a C struct, written or read field by field in the order of the header. Each field is
 * aligned to its size, as the C ABI does it. The memory lives as long as the object, which a try
 * block keeps reachable until its end.
 */
final class Struct implements AutoCloseable {
  final long address;
  private final ByteBuffer bytes;
  private int at;

  /** Zeroed memory. */
  Struct(int size) {
    bytes = ByteBuffer.allocateDirect(size).order(ByteOrder.nativeOrder());
    address = NativeSupport.addressOf(bytes);
  }

  /** Zeroed memory of a struct that begins with its own size. */
  static Struct sized(int size) {
    Struct struct = new Struct(size);
    struct.putInt(size);
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

  static long addressOrNull(Struct struct) {
    return struct == null ? 0 : struct.address;
  }

  /** The next field is the one at an offset. */
  Struct seek(int offset) {
    at = offset;
    return this;
  }

  Struct putInt(int value) {
    bytes.putInt(next(4), value);
    return this;
  }

  Struct putEnum(CEnum value) {
    return putInt(value.value());
  }

  Struct putEnum(CEnum value, String name) {
    return putEnum(Objects.requireNonNull(value, name));
  }

  Struct putCount(int value, String name) {
    return putInt(Memory.count(value, name));
  }

  Struct putFlag(boolean value) {
    return putInt(value ? 1 : 0);
  }

  Struct putFloat(float value) {
    bytes.putFloat(next(4), value);
    return this;
  }

  Struct putLong(long value) {
    bytes.putLong(next(8), value);
    return this;
  }

  Struct putDouble(double value) {
    bytes.putDouble(next(8), value);
    return this;
  }

  int getInt() {
    return intAt(next(4));
  }

  <E extends CEnum> E getEnum(Class<E> type) {
    return enumAt(next(4), type);
  }

  boolean getFlag() {
    return flagAt(next(4));
  }

  long getLong() {
    return longAt(next(8));
  }

  String getText() {
    return NativeSupport.stringAt(getLong());
  }

  // Fields at an offset, for structs that threads may share.

  int intAt(int offset) {
    return bytes.getInt(offset);
  }

  <E extends CEnum> E enumAt(int offset, Class<E> type) {
    return CEnum.of(type, intAt(offset));
  }

  boolean flagAt(int offset) {
    return intAt(offset) != 0;
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

  private int next(int size) {
    int here = (at + size - 1) & -size;
    at = here + size;
    return here;
  }
}
