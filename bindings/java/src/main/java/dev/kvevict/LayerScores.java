package dev.kvevict;

import java.nio.FloatBuffer;

/**
 * Scores of one layer, by which its budget is found.
 */
public final class LayerScores {
  private final FloatBuffer scores;
  private final int rows;

  private LayerScores(FloatBuffer scores, int rows) {
    this.scores = scores;
    this.rows = rows;
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

  int rows() {
    return rows;
  }

  void write(Struct out, int offset) {
    int n = scores.remaining();
    out.putInt(offset + Abi.LayerScores.STRUCT_SIZE, Abi.LayerScores.SIZEOF)
        .putInt(offset + Abi.LayerScores.N_ROWS, rows)
        .putLong(offset + Abi.LayerScores.SCORES, Memory.numbers(scores, "scores"))
        .putLong(offset + Abi.LayerScores.SCORES_LEN, n)
        .putInt(offset + Abi.LayerScores.N_TOKENS, n / rows);
  }
}
