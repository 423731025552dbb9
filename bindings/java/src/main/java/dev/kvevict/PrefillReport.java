package dev.kvevict;

/** What reading a prompt took. */
public sealed interface PrefillReport permits Records.PrefillReport {
  /** {@return chunks that the model has run over} */
  int chunks();

  /** {@return evictions that lost tokens} */
  int evictions();

  /** {@return the most tokens that any layer held, a chunk included} */
  int peakTokens();

  /** {@return the most bytes that rows of all layers took at a time} */
  long peakBytes();

  /** {@return bytes that they take at the end} */
  long endBytes();
}
