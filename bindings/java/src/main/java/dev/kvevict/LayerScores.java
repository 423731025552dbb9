package dev.kvevict;

import java.nio.FloatBuffer;

/**
 * Scores of one layer, by which its budget is found.
 *
 * @param scores f32 [rows, tokens], as {@link Plan#score} writes them; direct, in native order
 * @param rows keep lists, mostly KV heads
 */
public record LayerScores(FloatBuffer scores, int rows) {
  /** Checks that there are whole rows. */
  public LayerScores {
    Memory.numbers(scores, "scores");
    if (rows < 1 || scores.remaining() % rows != 0) {
      throw new IllegalArgumentException(
          scores.remaining() + " scores are not " + rows + " rows of the same length");
    }
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
