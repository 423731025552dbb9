package dev.kvevict;

/** Why a plan cannot do something. The constants have the C ABI's order. */
public enum Reason {
  /** It can. */
  NONE,
  /** Keys are opaque: nothing can be read from them. */
  OPAQUE_KEYS,
  /** Queries are opaque. */
  OPAQUE_QUERIES,
  /** This release does not re-rotate keys. */
  NO_ROTATION;

  /**
   * The reason as a sentence.
   *
   * @return the text; empty for {@link #NONE}
   */
  public String text() {
    return Native.kvevict_reason_text(ordinal());
  }
}
