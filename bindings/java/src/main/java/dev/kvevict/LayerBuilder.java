package dev.kvevict;

/** The numbers that a layer has by itself or that all layers of a model share. */
abstract class LayerBuilder<B extends LayerBuilder<B>> extends LayerGeometryFields<B> {
  /**
   * Elements of key and value rows.
   *
   * @param elements elements of both
   * @return this
   */
  public B headDim(int elements) {
    return keyHeadDim(elements).valueHeadDim(elements);
  }

  /**
   * One element type for queries, keys and values.
   *
   * @param dtype the type
   * @return this
   */
  public B dtype(DType dtype) {
    return queryType(dtype).keyType(dtype).valueType(dtype);
  }

  LayerGeometry layer() {
    return new LayerGeometry(fill(new Struct(Abi.LayerGeometry.SIZEOF), 0));
  }
}
