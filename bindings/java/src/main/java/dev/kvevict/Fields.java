package dev.kvevict;

/** What has setters of fields of a C struct. A setter changes and returns {@link #next()}. */
abstract class Fields<T extends Fields<T>> implements Cloneable {
  /** A copy, unless this is a builder, which is the next itself. */
  @SuppressWarnings("unchecked")
  T next() {
    try {
      return (T) clone();
    } catch (CloneNotSupportedException e) {
      throw new AssertionError(e);
    }
  }
}
