package dev.kvevict;

import java.util.Arrays;
import java.util.Objects;

/** Assertions. */
final class Check {
  private Check() {}

  interface Code {
    void run() throws Exception;
  }

  /** Thrown by a test that cannot run here, with the reason. */
  static final class Skipped extends RuntimeException {
    private static final long serialVersionUID = 1;

    Skipped(String reason) {
      super(reason);
    }
  }

  static void that(boolean condition, String message) {
    if (!condition) {
      throw new AssertionError(message);
    }
  }

  static void equal(Object expected, Object actual) {
    that(Objects.deepEquals(expected, actual), "expected " + text(expected) + ", got "
        + text(actual));
  }

  /** The code throws exactly this type, with a message that contains every part. */
  static <T extends Throwable> T fails(Class<T> type, Code code, String... parts) {
    try {
      code.run();
    } catch (Throwable e) {
      if (e.getClass() != type) {
        throw new AssertionError("expected " + type.getSimpleName() + ", got " + e, e);
      }
      for (String part : parts) {
        that(String.valueOf(e.getMessage()).contains(part),
            "no '" + part + "' in: " + e.getMessage());
      }
      return type.cast(e);
    }
    throw new AssertionError("nothing thrown, expected " + type.getSimpleName());
  }

  private static String text(Object value) {
    return value instanceof int[] a ? Arrays.toString(a)
        : value instanceof float[] a ? Arrays.toString(a) : String.valueOf(value);
  }
}
