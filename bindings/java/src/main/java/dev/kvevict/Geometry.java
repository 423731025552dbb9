package dev.kvevict;

/**
 * The attention geometry of a model whose layers are alike. {@link #builder()} names the numbers.
 *
 * @param nLayers layers
 * @param nQHeads query heads, a multiple of nKvHeads
 * @param nKvHeads KV heads
 * @param kHeadDim elements of a key row; 0 if opaque
 * @param vHeadDim elements of a value row; 0 if opaque or no V
 * @param qDtype element type of the queries
 * @param kDtype element type of the keys
 * @param vDtype element type of the values
 * @param maxTokens most slots a layer will ever hold
 * @param softmaxScale multiplies q.k; 0 means 1/sqrt(kHeadDim)
 */
public record Geometry(
    int nLayers,
    int nQHeads,
    int nKvHeads,
    int kHeadDim,
    int vHeadDim,
    DType qDtype,
    DType kDtype,
    DType vDtype,
    int maxTokens,
    float softmaxScale) {
  static final int SIZE = 48;

  Struct write() {
    return Struct.sized(SIZE)
        .putCount(nLayers, "nLayers")
        .putCount(nQHeads, "nQHeads")
        .putCount(nKvHeads, "nKvHeads")
        .putCount(kHeadDim, "kHeadDim")
        .putCount(vHeadDim, "vHeadDim")
        .putEnum(qDtype, "qDtype")
        .putEnum(kDtype, "kDtype")
        .putEnum(vDtype, "vDtype")
        .putCount(maxTokens, "maxTokens")
        .putFloat(softmaxScale);
  }

  /**
   * A geometry to fill in; element types are f32 unless set.
   *
   * @return the builder
   */
  public static Builder builder() {
    return new Builder();
  }

  /** Names the numbers of a {@link Geometry}. */
  public static final class Builder {
    private int layers;
    private int queryHeads;
    private int kvHeads;
    private int keyHeadDim;
    private int valueHeadDim;
    private DType queryType = DType.F32;
    private DType keyType = DType.F32;
    private DType valueType = DType.F32;
    private int maxTokens;
    private float softmaxScale;

    private Builder() {}

    /**
     * Layers.
     *
     * @param n how many
     * @return this
     */
    public Builder layers(int n) {
      layers = n;
      return this;
    }

    /**
     * Query heads.
     *
     * @param n how many
     * @return this
     */
    public Builder queryHeads(int n) {
      queryHeads = n;
      return this;
    }

    /**
     * KV heads.
     *
     * @param n how many
     * @return this
     */
    public Builder kvHeads(int n) {
      kvHeads = n;
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
      keyHeadDim = key;
      valueHeadDim = value;
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
     * @param query of the queries handed to capture and score
     * @param key of the keys
     * @param value of the values
     * @return this
     */
    public Builder dtypes(DType query, DType key, DType value) {
      queryType = query;
      keyType = key;
      valueType = value;
      return this;
    }

    /**
     * Most slots a layer will ever hold.
     *
     * @param n how many
     * @return this
     */
    public Builder maxTokens(int n) {
      maxTokens = n;
      return this;
    }

    /**
     * What multiplies q.k, unless 1/sqrt(headDim) is right.
     *
     * @param scale the factor
     * @return this
     */
    public Builder softmaxScale(float scale) {
      softmaxScale = scale;
      return this;
    }

    /**
     * The geometry.
     *
     * @return it
     */
    public Geometry build() {
      return new Geometry(layers, queryHeads, kvHeads, keyHeadDim, valueHeadDim, queryType, keyType,
          valueType, maxTokens, softmaxScale);
    }
  }
}
