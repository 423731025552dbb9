package dev.kvevict;

/** Why a plan cannot do something. */
public enum Reason implements CEnum {
  /** It can. */
  NONE(0),
  /** Keys are opaque: nothing can be read from them. */
  OPAQUE_KEYS(1),
  /** Queries are opaque. */
  OPAQUE_QUERIES(2),
  /** This release does not re-rotate keys. */
  NO_ROTATION(3);

  private final int value;

  Reason(int value) {
    this.value = value;
  }

  @Override
  public int value() {
    return value;
  }

  /**
   * The reason as a sentence.
   *
   * @return the text; empty for {@link #NONE}
   */
  public String text() {
    return Native.kvevict_reason_text(value);
  }
}
