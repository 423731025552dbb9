package dev.kvevict;

/** What the enums of the C ABI have in common. */
interface CEnum {
  /** {@return the number of the C ABI} */
  int value();

  /** The constant of a number, or null for one that a newer library may know. */
  static <E extends CEnum> E find(Class<E> type, int value) {
    for (E constant : type.getEnumConstants()) {
      if (constant.value() == value) {
        return constant;
      }
    }
    return null;
  }

  /** The constant of a number. */
  static <E extends CEnum> E of(Class<E> type, int value) {
    E constant = find(type, value);
    if (constant == null) {
      throw new IllegalStateException("the native library is newer than these classes: "
          + type.getSimpleName() + " " + value + " is unknown");
    }
    return constant;
  }
}
