package dev.kvevict;

/** The attention geometry of one layer. A value; {@link #builder()} names the numbers. */
public final class LayerGeometry {
  /** The C struct; not written again. */
  final Struct struct;

  LayerGeometry(Struct struct) {
    this.struct = struct;
  }

  /**
   * A layer to fill in, with a full cache; element types are f32 unless set.
   *
   * @return the builder
   */
  public static Builder builder() {
    return new Builder();
  }

  /** {@return what the layer keeps; without a full cache nothing else is read} */
  public LayerCache cache() {
    return struct.enumAt(Abi.LayerGeometry.CACHE, LayerCache.class);
  }

  /** {@return query heads, a multiple of {@link #kvHeads}} */
  public int queryHeads() {
    return struct.intAt(Abi.LayerGeometry.N_Q_HEADS);
  }

  /** {@return KV heads} */
  public int kvHeads() {
    return struct.intAt(Abi.LayerGeometry.N_KV_HEADS);
  }

  /** {@return elements of a key row; 0 if opaque} */
  public int keyHeadDim() {
    return struct.intAt(Abi.LayerGeometry.K_HEAD_DIM);
  }

  /** {@return elements of a value row; 0 if opaque or no V} */
  public int valueHeadDim() {
    return struct.intAt(Abi.LayerGeometry.V_HEAD_DIM);
  }

  /** {@return element type of the queries} */
  public DType queryType() {
    return struct.enumAt(Abi.LayerGeometry.Q_DTYPE, DType.class);
  }

  /** {@return element type of the keys} */
  public DType keyType() {
    return struct.enumAt(Abi.LayerGeometry.K_DTYPE, DType.class);
  }

  /** {@return element type of the values} */
  public DType valueType() {
    return struct.enumAt(Abi.LayerGeometry.V_DTYPE, DType.class);
  }

  /** {@return what multiplies q.k; 0 means 1/sqrt(keyHeadDim)} */
  public float softmaxScale() {
    return struct.floatAt(Abi.LayerGeometry.SOFTMAX_SCALE);
  }

  /** {@return the soft cap of scaled logits; 0: none} */
  public float logitSoftcap() {
    return struct.floatAt(Abi.LayerGeometry.LOGIT_SOFTCAP);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof LayerGeometry that && struct.equals(that.struct);
  }

  @Override
  public int hashCode() {
    return struct.hashCode();
  }

  @Override
  public String toString() {
    return "LayerGeometry[cache=" + cache() + ", queryHeads=" + queryHeads() + ", kvHeads=" + kvHeads()
        + ", keyHeadDim=" + keyHeadDim() + ", valueHeadDim=" + valueHeadDim() + ", queryType=" + queryType()
        + ", keyType=" + keyType() + ", valueType=" + valueType() + ", softmaxScale=" + softmaxScale()
        + ", logitSoftcap=" + logitSoftcap() + "]";
  }

  /** Names the numbers of a {@link LayerGeometry}. */
  public static final class Builder extends LayerBuilder<Builder> {
    private Builder() {}

    /**
     * The layer.
     *
     * @return it
     */
    public LayerGeometry build() {
      return layer();
    }

    @Override
    Builder next() {
      return this;
    }
  }
}
