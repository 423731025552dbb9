package dev.kvevict;

/**
 * A policy in tokens, for one context length.
 *
 * @param budget tokens kept in all
 * @param nSink first tokens kept
 * @param nRecent last tokens kept, the observation window included
 * @param nSelected tokens chosen by score
 * @param obsWindow last queries that score; 0 if none do
 */
public record ResolvedPolicy(
    int budget,
    int nSink,
    int nRecent,
    int nSelected,
    int obsWindow) {
  static final int SIZE = 24;

  static ResolvedPolicy read(Struct in) {
    in.seek(4);
    return new ResolvedPolicy(
        in.getInt(),
        in.getInt(),
        in.getInt(),
        in.getInt(),
        in.getInt());
  }
}
