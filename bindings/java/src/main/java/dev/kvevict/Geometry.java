package dev.kvevict;

/**
 * The attention geometry of a model whose layers are alike. A value; {@link #builder()} names the
 * numbers.
 */
public final class Geometry {
  /** As C has it; not written to again. */
  final Struct struct;

  private Geometry(Struct struct) {
    this.struct = struct;
  }

  /**
   * A geometry to fill in; element types are f32 unless set.
   *
   * @return the builder
   */
  public static Builder builder() {
    return new Builder();
  }

  /** {@return layers} */
  public int nLayers() {
    return struct.intAt(Abi.Geometry.N_LAYERS);
  }

  /** {@return query heads, a multiple of {@link #nKvHeads}} */
  public int nQHeads() {
    return struct.intAt(Abi.Geometry.N_Q_HEADS);
  }

  /** {@return KV heads} */
  public int nKvHeads() {
    return struct.intAt(Abi.Geometry.N_KV_HEADS);
  }

  /** {@return elements of a key row; 0 if opaque} */
  public int kHeadDim() {
    return struct.intAt(Abi.Geometry.K_HEAD_DIM);
  }

  /** {@return elements of a value row; 0 if opaque or no V} */
  public int vHeadDim() {
    return struct.intAt(Abi.Geometry.V_HEAD_DIM);
  }

  /** {@return element type of the queries} */
  public DType qDtype() {
    return struct.enumAt(Abi.Geometry.Q_DTYPE, DType.class);
  }

  /** {@return element type of the keys} */
  public DType kDtype() {
    return struct.enumAt(Abi.Geometry.K_DTYPE, DType.class);
  }

  /** {@return element type of the values} */
  public DType vDtype() {
    return struct.enumAt(Abi.Geometry.V_DTYPE, DType.class);
  }

  /** {@return most slots a layer will ever hold} */
  public int maxTokens() {
    return struct.intAt(Abi.Geometry.MAX_TOKENS);
  }

  /** {@return what multiplies q.k; 0 means 1/sqrt(kHeadDim)} */
  public float softmaxScale() {
    return struct.floatAt(Abi.Geometry.SOFTMAX_SCALE);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Geometry that && struct.equals(that.struct);
  }

  @Override
  public int hashCode() {
    return struct.hashCode();
  }

  @Override
  public String toString() {
    return "Geometry[nLayers=" + nLayers() + ", nQHeads=" + nQHeads() + ", nKvHeads=" + nKvHeads()
        + ", kHeadDim=" + kHeadDim() + ", vHeadDim=" + vHeadDim() + ", qDtype=" + qDtype()
        + ", kDtype=" + kDtype() + ", vDtype=" + vDtype() + ", maxTokens=" + maxTokens()
        + ", softmaxScale=" + softmaxScale() + "]";
  }

  /** Names the numbers of a {@link Geometry}. */
  public static final class Builder {
    private final Struct struct = Struct.sized(Abi.Geometry.SIZEOF);

    private Builder() {
      dtype(DType.F32);
    }

    /**
     * Layers.
     *
     * @param n how many
     * @return this
     */
    public Builder layers(int n) {
      struct.putCount(Abi.Geometry.N_LAYERS, n, "layers");
      return this;
    }

    /**
     * Query heads.
     *
     * @param n how many
     * @return this
     */
    public Builder queryHeads(int n) {
      struct.putCount(Abi.Geometry.N_Q_HEADS, n, "queryHeads");
      return this;
    }

    /**
     * KV heads.
     *
     * @param n how many
     * @return this
     */
    public Builder kvHeads(int n) {
      struct.putCount(Abi.Geometry.N_KV_HEADS, n, "kvHeads");
      return this;
    }

    /**
     * Elements of key and value rows.
     *
     * @param elements of both
     * @return this
     */
    public Builder headDim(int elements) {
      return headDims(elements, elements);
    }

    /**
     * Elements of key and of value rows.
     *
     * @param key elements of a key row
     * @param value elements of a value row
     * @return this
     */
    public Builder headDims(int key, int value) {
      struct.putCount(Abi.Geometry.K_HEAD_DIM, key, "key");
      struct.putCount(Abi.Geometry.V_HEAD_DIM, value, "value");
      return this;
    }

    /**
     * One element type for queries, keys and values.
     *
     * @param dtype the type
     * @return this
     */
    public Builder dtype(DType dtype) {
      return dtypes(dtype, dtype, dtype);
    }

    /**
     * The element types.
     *
     * @param query of the queries handed to observe and score
     * @param key of the keys
     * @param value of the values
     * @return this
     */
    public Builder dtypes(DType query, DType key, DType value) {
      struct.putEnum(Abi.Geometry.Q_DTYPE, query, "query");
      struct.putEnum(Abi.Geometry.K_DTYPE, key, "key");
      struct.putEnum(Abi.Geometry.V_DTYPE, value, "value");
      return this;
    }

    /**
     * Most slots a layer will ever hold.
     *
     * @param n how many
     * @return this
     */
    public Builder maxTokens(int n) {
      struct.putCount(Abi.Geometry.MAX_TOKENS, n, "maxTokens");
      return this;
    }

    /**
     * What multiplies q.k, unless 1/sqrt(headDim) is right.
     *
     * @param scale the factor
     * @return this
     */
    public Builder softmaxScale(float scale) {
      struct.putFloat(Abi.Geometry.SOFTMAX_SCALE, scale);
      return this;
    }

    /**
     * The geometry.
     *
     * @return it
     */
    public Geometry build() {
      return new Geometry(struct.copy());
    }
  }
}
