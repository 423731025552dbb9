package dev.kvevict;

/**
 * What signals read of a layer beside its keys. Each policy's signal needs some of it; the rest may
 * be absent. Immutable; start from {@link #NONE}.
 */
public final class SignalInputs {
  /** Nothing. */
  public static final SignalInputs NONE = new SignalInputs(null, null, null);

  /** Bytes of the planes of one. */
  static final int PLANES = 3 * Abi.Plane.SIZEOF;

  private final Plane queries;
  private final Plane rowLse;
  private final Plane scores;

  private SignalInputs(Plane queries, Plane rowLse, Plane scores) {
    this.queries = queries;
    this.rowLse = rowLse;
    this.scores = scores;
  }

  /**
   * For window attention. CUDA takes its tensor cores where elements are packed and rows of queries
   * and keys begin at multiples of 16 bytes.
   *
   * @param rows [nQHeads, rows], after RoPE; or null
   * @return these inputs with the queries
   */
  public SignalInputs withQueries(Plane rows) {
    return new SignalInputs(rows, rowLse, scores);
  }

  /**
   * What saves CUDA a pass over the keys.
   *
   * @param lse [nQHeads, rows] f32, headDim 1: the natural log-sum-exp of each query row's scaled
   *     logits; or null
   * @return these inputs with the numbers
   */
  public SignalInputs withRowLse(Plane lse) {
    return new SignalInputs(queries, lse, scores);
  }

  /**
   * For the policy custom.
   *
   * @param each [nKvHeads, slots held] f32, headDim 1, tokens packed; or null
   * @return these inputs with the scores
   */
  public SignalInputs withScores(Plane each) {
    return new SignalInputs(queries, rowLse, each);
  }

  boolean hasScores() {
    return scores != null;
  }

  /** Throws unless the buffers hold so many rows of the layer's query heads. */
  void requireRows(int nRows, LayerGeometry shape, int layer) {
    require(queries, nRows, shape.nQHeads(), "queries", layer);
    require(rowLse, nRows, shape.nQHeads(), "rowLse", layer);
  }

  /** Throws unless the buffer has scores of so many slots of the layer's KV heads. */
  void requireScores(int nSlots, LayerGeometry shape, int layer) {
    require(scores, nSlots, shape.nKvHeads(), "scores", layer);
  }

  private static void require(Plane plane, int n, int nHeads, String name, int layer) {
    if (plane != null && plane.capacity(nHeads) < n) {
      plane.require(n, nHeads, name + " of layer " + layer);
    }
  }

  /** Writes these inputs, and their planes, at offsets where nothing else ever lies. */
  void write(Struct out, int offset, int planes) {
    out.putInt(offset + Abi.SignalInputs.STRUCT_SIZE, Abi.SignalInputs.SIZEOF);
    write(queries, out, offset + Abi.SignalInputs.QUERIES, planes);
    write(rowLse, out, offset + Abi.SignalInputs.ROW_LSE, planes + Abi.Plane.SIZEOF);
    write(scores, out, offset + Abi.SignalInputs.SCORES, planes + 2 * Abi.Plane.SIZEOF);
  }

  private static void write(Plane plane, Struct out, int pointer, int offset) {
    if (plane != null) {
      Plane.write(plane, out, offset);
    }
    out.putLong(pointer, plane == null ? 0 : out.address + offset);
  }
}
