package dev.kvevict;

/** One row of the table of policies. */
public sealed interface PolicyInfo permits Records.PolicyInfo {
  /** {@return the name in the text form} */
  String name();

  /** {@return what ranks a token} */
  String signal();

  /** {@return what it keeps, in words} */
  String summary();

  /** {@return when it runs} */
  String trigger();

  /** {@return its source; empty if none} */
  String paper();

  /**
   * {@return the parameters whose default is another than the library's, as in the text form; empty
   *     if none}
   */
  String defaults();
}
