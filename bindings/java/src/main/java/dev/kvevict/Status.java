package dev.kvevict;

/** What a call came to: one value per reaction a caller could have. */
public enum Status implements CEnum {
  /** It worked. */
  OK(0),
  /** A parameter is wrong; correct the call. */
  INVALID_ARGUMENT(1),
  /** Well-formed, but this layout, dtype or combination is not handled. */
  UNSUPPORTED(2),
  /** The device or a library it needs is not on this machine. */
  UNAVAILABLE(3),
  /** There was no memory. */
  OUT_OF_MEMORY(4),
  /** A bug in kvevict; please report the message. */
  INTERNAL(5),
  /** The driver reported an error; what the call had queued may have run in part. */
  DEVICE(6);

  private final int value;

  Status(int value) {
    this.value = value;
  }

  @Override
  public int value() {
    return value;
  }
}
