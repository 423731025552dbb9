package dev.kvevict;

import java.util.regex.Pattern;

/**
 * A call of the native library failed. It has changed nothing: no cache byte, no output, no state.
 */
public final class KvEvictException extends RuntimeException {
  private static final long serialVersionUID = 1;
  private static final Pattern FUNCTION = Pattern.compile("kvevict_[a-z0-9_]+");

  /** The number of the status, which a newer library may know and this class not. */
  private final int code;

  /** Called from native code. */
  KvEvictException(int code, String message) {
    super(Native.kvevict_status_name(code) + ": "
        + FUNCTION.matcher(message).replaceAll(function -> Names.of(function.group())));
    this.code = code;
  }

  /**
   * The kind of failure.
   *
   * @return the status; {@link Status#INTERNAL} for a number this version does not know
   */
  public Status status() {
    Status known = CEnum.find(Status.class, code);
    return known == null ? Status.INTERNAL : known;
  }

  /**
   * The status as the number of the C ABI.
   *
   * @return the number
   */
  public int code() {
    return code;
  }
}
