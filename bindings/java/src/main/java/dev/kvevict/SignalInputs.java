package dev.kvevict;

import java.nio.IntBuffer;

/**
 * What signals read of a layer beside its keys. Each policy's signal needs some of it; the rest may
 * be absent. Immutable; start from {@link #NONE}.
 */
public final class SignalInputs extends SignalInputsFields<SignalInputs> {
  /** The rows that a head has in an input. */
  private enum Rows { WINDOW, SLOTS, ONE, THREE, HEAD_DIM, REFERENCE }

  /** The inputs: where C points to them, and their rows. */
  private enum Input {
    QUERIES("queries", Abi.SignalInputs.QUERIES, Rows.WINDOW, false),
    ROW_LSE("rowLse", Abi.SignalInputs.ROW_LSE, Rows.WINDOW, false),
    SCORES("scores", Abi.SignalInputs.SCORES, Rows.SLOTS, true),
    ATTENTION_SUMS("attentionSums", Abi.SignalInputs.ATTENTION_SUMS, Rows.SLOTS, false),
    QUERY_MEAN("queryMean", Abi.SignalInputs.QUERY_MEAN, Rows.ONE, false),
    QUERY_COVARIANCE("queryCovariance", Abi.SignalInputs.QUERY_COVARIANCE, Rows.HEAD_DIM, false),
    KEY_FILTER("keyFilter", Abi.SignalInputs.KEY_FILTER, Rows.ONE, true),
    TOKEN_WEIGHTS("tokenWeights", Abi.SignalInputs.TOKEN_WEIGHTS, Rows.SLOTS, true),
    QUERY_CENTERS("queryCenters", Abi.SignalInputs.QUERY_CENTERS, Rows.THREE, false),
    REFERENCE_QUERIES("referenceQueries", Abi.SignalInputs.REFERENCE_QUERIES, Rows.REFERENCE, false);

    final String text;
    final int pointer;
    final Rows rows;
    final boolean ofKvHeads;

    Input(String text, int pointer, Rows rows, boolean ofKvHeads) {
      this.text = text;
      this.pointer = pointer;
      this.rows = rows;
      this.ofKvHeads = ofKvHeads;
    }
  }

  private static final Input[] INPUTS = Input.values();

  /** Nothing. */
  public static final SignalInputs NONE = new SignalInputs();

  /** Bytes of the planes of one. */
  static final int PLANES = INPUTS.length * Abi.Plane.SIZEOF;

  private Plane[] planes = new Plane[INPUTS.length];
  private Numbers referencePositions; // null: behind all slots

  private SignalInputs() {}

  private SignalInputs with(Input input, Plane plane) {
    SignalInputs next = next();
    next.planes = planes.clone();
    next.planes[input.ordinal()] = plane;
    return next;
  }

  /**
   * Sets queries for window attention, for h2o without sums, and for non-causal, of all slots. CUDA
   * takes its tensor cores where elements are packed and rows of queries and keys begin at
   * multiples of 16 bytes.
   *
   * @param rows [queryHeads, rows], after RoPE; or null
   * @return these inputs with the queries
   */
  public SignalInputs withQueries(Plane rows) {
    return with(Input.QUERIES, rows);
  }

  /**
   * Sets log-sum-exps, which save a pass over the keys.
   *
   * @param lse [queryHeads, rows] f32, headDim 1: the natural log-sum-exp of each query row's scaled
   *     logits; or null
   * @return these inputs with the numbers
   */
  public SignalInputs withRowLse(Plane lse) {
    return with(Input.ROW_LSE, lse);
  }

  /**
   * Sets the scores of the policy custom. A sequence that observes those of a chunk's tokens keeps
   * them with their slots.
   *
   * @param each [kvHeads, slots held, or the chunk's rows] f32, headDim 1, tokens packed; or null
   * @return these inputs with the scores
   */
  public SignalInputs withScores(Plane each) {
    return with(Input.SCORES, each);
  }

  /**
   * Sets the attention weight that each slot got, for h2o. A sequence that observes it, summed
   * over a chunk's rows, of the slots including the chunk's, adds it up. For scoring without a
   * sequence it is summed over all queries that saw a slot, and the engine keeps it: a companion of
   * the view moves with its tokens.
   *
   * @param each [sumHeads, slots held] f32, headDim 1, tokens packed; or null
   * @return these inputs with the sums
   */
  public SignalInputs withAttentionSums(Plane each) {
    return with(Input.ATTENTION_SUMS, each);
  }

  /**
   * Sets the queries to come, rotated to their positions, for expected-attention.
   *
   * @param mean [queryHeads, 1, keyHeadDim] f32, packed; or null
   * @param covariance [queryHeads, keyHeadDim, keyHeadDim] f32, packed; or null
   * @return these inputs with mean and covariance
   */
  public SignalInputs withQueryStatistics(Plane mean, Plane covariance) {
    return with(Input.QUERY_MEAN, mean)
        .with(Input.QUERY_COVARIANCE, covariance);
  }

  /**
   * Sets the key filter of the policy q-filter.
   *
   * @param direction [kvHeads, 1, keyHeadDim] f32, packed: where keys get no attention; or null
   * @return these inputs with the direction
   */
  public SignalInputs withKeyFilter(Plane direction) {
    return with(Input.KEY_FILTER, direction);
  }

  /**
   * Sets what scores are multiplied by with {@code weight=given}, under any policy.
   *
   * @param each [kvHeads, slots held] f32, headDim 1, tokens packed; or null
   * @return these inputs with the weights
   */
  public SignalInputs withTokenWeights(Plane each) {
    return with(Input.TOKEN_WEIGHTS, each);
  }

  /** Rows of queries for a plan that takes so many, or below 0 as many as there are slots. */
  int queryRows(int ofPlan, int slotCount) {
    return queryRows != 0 ? queryRows : ofPlan >= 0 ? ofPlan : slotCount;
  }

  /**
   * Sets the centers of the model's queries before RoPE, for triattention.
   *
   * @param centers [queryHeads, 3, pairs that RoPE rotates] f32, packed: of each pair of elements the
   *     real and the imaginary part of its mean, and its mean length; or null
   * @return these inputs with the centers
   */
  public SignalInputs withQueryCenters(Plane centers) {
    return with(Input.QUERY_CENTERS, centers);
  }

  /**
   * Sets queries of no token held, such as those of a likely question, for window attention with
   * {@code reference} above 0. {@link #withReferenceRows} says how many.
   *
   * @param rows [queryHeads, referenceRows, keyHeadDim], after RoPE; or null
   * @return these inputs with the queries
   */
  public SignalInputs withReferenceQueries(Plane rows) {
    return with(Input.REFERENCE_QUERIES, rows);
  }

  /**
   * Sets the positions of the reference queries: a row sees the slots up to its own.
   *
   * @param each [referenceRows]; null: rows see every slot
   * @return these inputs with the positions
   */
  public SignalInputs withReferencePositions(IntBuffer each) {
    SignalInputs next = next();
    next.referencePositions = each == null ? null : Numbers.of(each, "each");
    return next;
  }

  /**
   * Sets the positions of the reference queries, at an address.
   *
   * @param each address of i32 [referenceRows] on the context's device
   * @return these inputs with the positions
   */
  public SignalInputs withReferencePositions(long each) {
    SignalInputs next = next();
    next.referencePositions = Numbers.at(each, Integer.MAX_VALUE, "each");
    return next;
  }

  /** Whether there are sums of attention. */
  boolean hasSums() {
    return planes[Input.ATTENTION_SUMS.ordinal()] != null;
  }

  /** Whether some have a row per slot held. */
  boolean hasSlots(int ofPlan) {
    if (queryRows == 0 && ofPlan < 0 && planes[Input.QUERIES.ordinal()] != null) {
      return true;
    }
    for (Input input : INPUTS) {
      if (input.rows == Rows.SLOTS && planes[input.ordinal()] != null) {
        return true;
      }
    }
    return false;
  }

  /** Throws unless buffers without a row per slot hold what is read, of so many query rows. */
  void requireRows(int rowCount, LayerGeometry shape, int layer) {
    for (Input input : INPUTS) {
      if (input.rows != Rows.SLOTS) {
        require(input, switch (input.rows) {
          case WINDOW -> rowCount;
          case HEAD_DIM -> shape.keyHeadDim();
          case THREE -> 3;
          case REFERENCE -> referenceRows;
          default -> 1;
        }, shape, layer);
      }
    }
  }

  /** Throws unless buffers with a row per slot hold so many. */
  void requireSlots(int slotCount, LayerGeometry shape, int layer) {
    for (Input input : INPUTS) {
      if (input.rows == Rows.SLOTS) {
        require(input, slotCount, shape, layer);
      }
    }
  }

  private void require(Input input, int n, LayerGeometry shape, int layer) {
    Plane plane = planes[input.ordinal()];
    if (plane == null || shape.kvHeads() == 0) {
      return;
    }
    int headCount = input.ofKvHeads ? shape.kvHeads() : shape.queryHeads();
    if (input == Input.ATTENTION_SUMS && sumHeads != 0) {
      headCount = sumHeads;
    }
    if (input != Input.QUERIES && input != Input.REFERENCE_QUERIES) {
      plane = plane.packed(n);
    }
    if (plane.capacity(headCount) < n) {
      plane.require(n, headCount, input.text + " of layer " + layer);
    }
  }

  /** Writes these inputs, and their planes, at offsets where nothing else ever lies. */
  void write(Struct out, int offset, int planes, Device device) {
    fill(out, offset).putLong(offset + Abi.SignalInputs.REFERENCE_POSITIONS,
        Numbers.each(referencePositions, device, referenceRows, "referencePositions"));
    for (Input input : INPUTS) {
      Plane plane = this.planes[input.ordinal()];
      int at = planes + input.ordinal() * Abi.Plane.SIZEOF;
      if (plane != null) {
        Plane.write(plane, out, at);
      }
      out.putLong(offset + input.pointer, plane == null ? 0 : out.address + at);
    }
  }
}
