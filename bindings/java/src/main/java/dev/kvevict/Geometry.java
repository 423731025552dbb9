package dev.kvevict;

import java.util.Arrays;
import java.util.List;
import java.util.Objects;

/** The attention geometry of a model. A value. */
public final class Geometry extends GeometryFields<Geometry> {
  private static final LayerGeometry NOT_EVICTED =
      LayerGeometry.builder().cache(LayerCache.NONE).build();

  private final List<LayerGeometry> layers; // one that all have, or one for each
  private final float[] ropeInvFreq;
  private final float[] sinkLogits;

  private Geometry(int layerCount, int maxTokens, List<LayerGeometry> layers, RopeLayout ropeLayout,
      float[] ropeInvFreq, float[] sinkLogits) {
    this.layerCount = layerCount;
    this.maxTokens = Memory.count(maxTokens, "maxTokens");
    this.layers = layers;
    this.ropeLayout = Objects.requireNonNull(ropeLayout, "ropeLayout");
    this.ropeInvFreq = ropeInvFreq.clone();
    this.sinkLogits = sinkLogits.clone();
  }

  /**
   * The geometry of a model whose layers are alike, to fill in.
   *
   * @return the builder
   */
  public static Builder builder() {
    return new Builder();
  }

  /**
   * The geometry of a model whose layers differ.
   *
   * @param maxTokens most slots a layer will ever hold
   * @param layers each one, in their order
   * @return the geometry
   */
  public static Geometry of(int maxTokens, List<LayerGeometry> layers) {
    boolean alike = layers.stream().distinct().count() == 1;
    return new Geometry(
        layers.size(), maxTokens, List.copyOf(alike ? layers.subList(0, 1) : layers),
        RopeLayout.HALF, new float[0], new float[0]);
  }

  /**
   * Sets how RoPE rotated the keys of layers with a full cache, which triattention needs: pair
   * f of a key at position p by p times number f radians, whatever scaling went into that. Elements
   * beyond the pairs are not rotated.
   *
   * @param layout which elements are a pair
   * @param inverseFrequencies a number for each pair
   * @return this geometry with RoPE
   */
  public Geometry withRope(RopeLayout layout, float... inverseFrequencies) {
    return new Geometry(layerCount, maxTokens, layers, layout, inverseFrequencies, sinkLogits);
  }

  /**
   * The same with logits that take part in the softmax and have no value (gpt-oss).
   *
   * @param logits one per query head of all layers with a full cache, layer by layer; negative
   *     infinity for a head without one
   * @return it
   */
  public Geometry withSinkLogits(float... logits) {
    return new Geometry(layerCount, maxTokens, layers, ropeLayout, ropeInvFreq, logits);
  }

  /** {@return layers} */
  public int layerCount() {
    return layerCount;
  }

  /** {@return most slots a layer will ever hold} */
  public int maxTokens() {
    return maxTokens;
  }

  /**
   * A layer.
   *
   * @param layer the layer
   * @return its geometry
   */
  public LayerGeometry layer(int layer) {
    return layers.get(Objects.checkIndex(layer, layerCount) < layers.size() ? layer : 0);
  }

  int ropePairs() {
    return ropeInvFreq.length;
  }

  /** The layer if it is evicted. Else one without heads: C reads nothing of it, or refuses it. */
  LayerGeometry evicted(int layer) {
    boolean full =
        layer >= 0 && layer < layerCount && layer(layer).cache() == LayerCache.FULL;
    return full ? layer(layer) : NOT_EVICTED;
  }

  /** The C struct, followed by the layers, the numbers of RoPE and the sinks. */
  Struct write() {
    int size = Abi.Geometry.SIZEOF;
    int rope = size + layers.size() * Abi.LayerGeometry.SIZEOF;
    int sinks = rope + ropeInvFreq.length * Float.BYTES;
    Struct out = new Struct(sinks + sinkLogits.length * Float.BYTES);
    for (int f = 0; f < ropeInvFreq.length; ++f) {
      out.putFloat(rope + f * Float.BYTES, ropeInvFreq[f]);
    }
    for (int h = 0; h < sinkLogits.length; ++h) {
      out.putFloat(sinks + h * Float.BYTES, sinkLogits[h]);
    }
    for (int i = 0; i < layers.size(); ++i) {
      out.copyFrom(layers.get(i).struct, size + i * Abi.LayerGeometry.SIZEOF);
    }
    return fill(out, 0)
        .putLong(Abi.Geometry.LAYERS, layers.isEmpty() ? 0 : out.address + size)
        .putLong(Abi.Geometry.LAYERS_LEN, layers.size())
        .putLong(Abi.Geometry.ROPE_INV_FREQ, ropeInvFreq.length == 0 ? 0 : out.address + rope)
        .putLong(Abi.Geometry.ROPE_INV_FREQ_LEN, ropeInvFreq.length)
        .putLong(Abi.Geometry.SINK_LOGITS, sinkLogits.length == 0 ? 0 : out.address + sinks)
        .putLong(Abi.Geometry.SINK_LOGITS_LEN, sinkLogits.length);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Geometry that && layerCount == that.layerCount
        && maxTokens == that.maxTokens && layers.equals(that.layers)
        && ropeLayout == that.ropeLayout && Arrays.equals(ropeInvFreq, that.ropeInvFreq)
        && Arrays.equals(sinkLogits, that.sinkLogits);
  }

  @Override
  public int hashCode() {
    return Objects.hash(layerCount, maxTokens, layers, ropeLayout, Arrays.hashCode(ropeInvFreq),
        Arrays.hashCode(sinkLogits));
  }

  @Override
  public String toString() {
    return "Geometry[layerCount=" + layerCount + ", maxTokens=" + maxTokens + ", layers=" + layers
        + ", ropeLayout=" + ropeLayout + ", ropeInvFreq=" + Arrays.toString(ropeInvFreq)
        + ", sinkLogits=" + Arrays.toString(sinkLogits) + "]";
  }

  /** Names the numbers of a {@link Geometry} whose layers are alike; of f32 elements unless set. */
  public static final class Builder extends LayerBuilder<Builder> {
    private int layerCount;
    private int maxTokens;

    private Builder() {}

    /**
     * Layers.
     *
     * @param n the number
     * @return this
     */
    public Builder layers(int n) {
      layerCount = Memory.count(n, "layers");
      return this;
    }

    /**
     * Most slots a layer will ever hold.
     *
     * @param n the number
     * @return this
     */
    public Builder maxTokens(int n) {
      maxTokens = Memory.count(n, "maxTokens");
      return this;
    }

    /**
     * The geometry.
     *
     * @return it
     */
    public Geometry build() {
      return new Geometry(layerCount, maxTokens, List.of(layer()),
          RopeLayout.HALF, new float[0], new float[0]);
    }

    @Override
    Builder next() {
      return this;
    }
  }
}
