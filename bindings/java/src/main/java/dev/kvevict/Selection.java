package dev.kvevict;

/** What a plan's policy asks of {@link Context#select}. */
public sealed interface Selection permits Records.Selection {
  /** {@return the options, without scores and protected slots} */
  SelectOptions options();

  /** {@return keep lists} */
  int listCount();

  /** {@return slots in every list} */
  int count();
}
