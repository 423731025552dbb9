package dev.kvevict;

import java.nio.IntBuffer;
import java.util.Objects;

/** What the scoring of a layer reads. Immutable; what the policy has no use for may be absent. */
public final class ScoreInputs {
  final View view;
  final int nTokens;
  final int layer;
  final Numbers tokenCounts; // null: all heads hold nTokens
  final Plane queries;
  final Plane rowLse;

  private ScoreInputs(View view, int nTokens, int layer, Numbers tokenCounts, Plane queries,
      Plane rowLse) {
    this.view = view;
    this.nTokens = nTokens;
    this.layer = layer;
    this.tokenCounts = tokenCounts;
    this.queries = queries;
    this.rowLse = rowLse;
  }

  /**
   * A layer's cache, of layer 0.
   *
   * @param view the layer's cache
   * @param nTokens slots held
   * @return the inputs
   */
  public static ScoreInputs of(View view, int nTokens) {
    return new ScoreInputs(Objects.requireNonNull(view, "view"), nTokens, 0, null, null, null);
  }

  /**
   * Which layer it is.
   *
   * @param which the layer
   * @return these inputs with the layer
   */
  public ScoreInputs withLayer(int which) {
    return new ScoreInputs(view, nTokens, which, tokenCounts, queries, rowLse);
  }

  /**
   * Where heads hold different numbers of slots, on the CPU.
   *
   * @param each slots of a KV head, at most nTokens; direct, in native order
   * @return these inputs with the counts
   */
  public ScoreInputs withTokenCounts(IntBuffer each) {
    return new ScoreInputs(view, nTokens, layer, Numbers.of(each, "each"), queries, rowLse);
  }

  /**
   * Where heads hold different numbers of slots, at an address.
   *
   * @param each address of u32 [nKvHeads], at most nTokens, on the context's device
   * @return these inputs with the counts
   */
  public ScoreInputs withTokenCounts(long each) {
    return new ScoreInputs(
        view, nTokens, layer, Numbers.at(each, Integer.MAX_VALUE, "each"), queries, rowLse);
  }

  /**
   * For window attention.
   *
   * @param rows [nQHeads, obsWindow], after RoPE
   * @return these inputs with the queries
   */
  public ScoreInputs withQueries(Plane rows) {
    return new ScoreInputs(view, nTokens, layer, tokenCounts, rows, rowLse);
  }

  /**
   * What saves CUDA a pass over the keys.
   *
   * @param lse [nQHeads, obsWindow] f32 log-sum-exps of the query rows' scaled logits; or null
   * @return these inputs with the numbers
   */
  public ScoreInputs withRowLse(Plane lse) {
    return new ScoreInputs(view, nTokens, layer, tokenCounts, queries, lse);
  }
}
