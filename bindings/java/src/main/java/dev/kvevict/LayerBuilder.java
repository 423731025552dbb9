package dev.kvevict;

/** The numbers that a layer has by itself or that all layers of a model share. */
abstract class LayerBuilder<B extends LayerBuilder<B>> {
  final Struct struct = Struct.sized(Abi.LayerGeometry.SIZEOF);

  LayerBuilder() {
    dtype(DType.F32);
  }

  abstract B self();

  /**
   * Query heads.
   *
   * @param n the number
   * @return this
   */
  public B queryHeads(int n) {
    struct.putCount(Abi.LayerGeometry.N_Q_HEADS, n, "queryHeads");
    return self();
  }

  /**
   * KV heads.
   *
   * @param n the number
   * @return this
   */
  public B kvHeads(int n) {
    struct.putCount(Abi.LayerGeometry.N_KV_HEADS, n, "kvHeads");
    return self();
  }

  /**
   * Elements of key and value rows.
   *
   * @param elements elements of both
   * @return this
   */
  public B headDim(int elements) {
    return headDims(elements, elements);
  }

  /**
   * Elements of key and of value rows.
   *
   * @param key elements of a key row
   * @param value elements of a value row
   * @return this
   */
  public B headDims(int key, int value) {
    struct.putCount(Abi.LayerGeometry.K_HEAD_DIM, key, "key");
    struct.putCount(Abi.LayerGeometry.V_HEAD_DIM, value, "value");
    return self();
  }

  /**
   * One element type for queries, keys and values.
   *
   * @param dtype the type
   * @return this
   */
  public B dtype(DType dtype) {
    return dtypes(dtype, dtype, dtype);
  }

  /**
   * The element types.
   *
   * @param query the type of the queries handed to observe, score and evict
   * @param key the type of the keys
   * @param value the type of the values
   * @return this
   */
  public B dtypes(DType query, DType key, DType value) {
    struct.putEnum(Abi.LayerGeometry.Q_DTYPE, query, "query");
    struct.putEnum(Abi.LayerGeometry.K_DTYPE, key, "key");
    struct.putEnum(Abi.LayerGeometry.V_DTYPE, value, "value");
    return self();
  }

  /**
   * Sets what multiplies q.k, unless 1/sqrt(headDim) is right.
   *
   * @param scale the factor
   * @return this
   */
  public B softmaxScale(float scale) {
    struct.putFloat(Abi.LayerGeometry.SOFTMAX_SCALE, scale);
    return self();
  }

  /**
   * Sets what keeps logits within bounds.
   *
   * @param cap scaled logits x become cap tanh(x / cap) (Gemma 2); 0, as without a call: they stay
   * @return this
   */
  public B logitSoftcap(float cap) {
    struct.putFloat(Abi.LayerGeometry.LOGIT_SOFTCAP, cap);
    return self();
  }
}
