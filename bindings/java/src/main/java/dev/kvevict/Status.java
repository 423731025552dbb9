package dev.kvevict;

/** What a call came to: one value per reaction a caller could have. The constants have the C ABI's order. */
public enum Status {
  /** It worked. */
  OK,
  /** A parameter is wrong; correct the call. */
  INVALID_ARGUMENT,
  /** Well-formed, but this layout, dtype or combination is not handled. */
  UNSUPPORTED,
  /** The device or a library it needs is not on this machine. */
  UNAVAILABLE,
  /** There was no memory. */
  OUT_OF_MEMORY,
  /** A bug in kvevict; please report the message. */
  INTERNAL,
  /** The driver reported an error; what the call had queued may have run in part. */
  DEVICE
}
