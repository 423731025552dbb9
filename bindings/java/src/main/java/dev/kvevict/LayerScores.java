package dev.kvevict;

import java.nio.FloatBuffer;

/**
 * Scores of one layer, by which its budget is found.
 */
public final class LayerScores extends LayerScoresFields<LayerScores> {
  private final FloatBuffer scores;

  private LayerScores(FloatBuffer scores, int rows) {
    this.scores = scores;
    rowCount = rows;
  }

  /**
   * Scores of whole rows.
   *
   * @param scores f32 [rows, tokens], as {@link Plan#score} writes them; direct, in native order
   * @param rows keep lists, mostly KV heads
   * @return the scores
   */
  public static LayerScores of(FloatBuffer scores, int rows) {
    Memory.numbers(scores, "scores");
    if (rows < 1 || scores.remaining() % rows != 0) {
      throw new IllegalArgumentException(
          scores.remaining() + " scores are not " + rows + " rows of the same length");
    }
    return new LayerScores(scores, rows);
  }

  void write(Struct out, int offset) {
    int n = scores.remaining();
    fill(out, offset)
        .putLong(offset + Abi.LayerScores.SCORES, Memory.numbers(scores, "scores"))
        .putLong(offset + Abi.LayerScores.SCORES_LEN, n)
        .putInt(offset + Abi.LayerScores.N_TOKENS, n / rowCount);
  }
}
