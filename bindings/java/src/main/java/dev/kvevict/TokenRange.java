package dev.kvevict;

/**
 * Tokens that go later than others, but may go, or sooner: whatever its score, a token of a higher
 * rank stays before any of a lower one; those in no range have rank 0. A call takes up to 64 ranges,
 * none of which begins before the end of the one before. Ranges say which tokens a list keeps, never
 * how many.
 */
public final class TokenRange extends TokenRangeFields<TokenRange> {
  private TokenRange(int first, int end, int rank) {
    this.first = first;
    this.end = end;
    this.rank = rank;
  }

  /**
   * A range.
   *
   * @param first first position, or slot
   * @param end behind the last one; {@link Integer#MAX_VALUE} for all to come
   * @param rank any
   * @return the range
   */
  public static TokenRange of(int first, int end, int rank) {
    return new TokenRange(Memory.count(first, "first"), Memory.count(end, "end"), rank);
  }

  /** Ranges as calls take them; null of none. */
  static Struct write(TokenRange... ranges) {
    if (ranges.length == 0) {
      return null;
    }
    int size = Abi.TokenRange.SIZEOF;
    Struct out = new Struct(ranges.length * size);
    for (int i = 0; i < ranges.length; ++i) {
      ranges[i].fill(out, i * size);
    }
    return out;
  }
}
