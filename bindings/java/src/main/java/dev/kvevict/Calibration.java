package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;

/**
 * Adds up the queries that it is shown, over any number of texts, and tells what policies that
 * expect queries to come want in {@link SignalInputs}. It is made once per model. One thread at a
 * time; a second one gets an IllegalStateException.
 */
public final class Calibration extends Handle {
  private final Geometry geometry;

  Calibration(long pointer, Geometry geometry, Hooks hooks) {
    super(pointer, Native::kvevict_calibration_destroy, hooks);
    this.geometry = geometry;
  }

  /**
   * Adds query rows of a layer. It makes no difference how they are cut into calls. A row with NaN or
   * infinity is an error, and nothing is added.
   *
   * @param layer below the number of layers, with a full cache
   * @param queries [query heads, rows, key head dim] after RoPE, in f32 or the geometry's type
   * @param rowCount rows; 0 adds nothing
   * @param firstPosition the position of row 0; the others follow
   */
  public void observe(int layer, Plane queries, int rowCount, int firstPosition) {
    observe(layer, queries, rowCount, firstPosition, 0);
  }

  /**
   * Adds query rows of a layer. On CUDA this waits.
   *
   * @param layer below the number of layers, with a full cache
   * @param queries [query heads, rows, key head dim] after RoPE, in f32 or the geometry's type
   * @param rowCount rows; 0 adds nothing
   * @param firstPosition the position of row 0; the others follow
   * @param stream a CUstream; ignored on the CPU
   */
  public void observe(int layer, Plane queries, int rowCount, int firstPosition, long stream) {
    Memory.count(layer, "layer");
    Memory.count(rowCount, "rowCount");
    Memory.count(firstPosition, "firstPosition");
    queries.require(rowCount, geometry.evicted(layer).queryHeads(), "queries");
    long calibration = enterAlone();
    try (Struct plane = new Struct(Abi.Plane.SIZEOF)) {
      Plane.write(queries, plane, 0);
      Native.kvevict_calibration_observe(
          calibration, layer, plane.address, firstPosition, rowCount, stream);
    } finally {
      leave();
      Reference.reachabilityFence(queries);
    }
  }

  /**
   * Counts the rows of a layer.
   *
   * @param layer below the number of layers, with a full cache
   * @return how many have been added
   */
  public long rowCount(int layer) {
    long calibration = enterAlone();
    try {
      return Native.kvevict_calibration_rows(calibration, Memory.count(layer, "layer"));
    } finally {
      leave();
    }
  }

  /**
   * What triattention takes as query centers.
   *
   * @param layer a layer of which rows have been added
   * @return [query heads, 3, pairs of RoPE]
   */
  public float[] queryCenters(int layer) {
    Memory.count(layer, "layer");
    int n = geometry.evicted(layer).queryHeads() * 3 * geometry.ropePairs();
    long calibration = enterAlone();
    try (Struct out = new Struct(Float.BYTES * n + 1)) {
      Native.kvevict_calibration_query_centers(calibration, layer, out.address, n);
      return out.floatsAt(0, n);
    } finally {
      leave();
    }
  }

  /**
   * What expected-attention takes as query mean.
   *
   * @param layer a layer of which rows have been added
   * @param firstPosition the first position to come
   * @param positionCount how many positions count, at most 65,536; the paper has 512
   * @return [query heads, key head dim]
   */
  public float[] queryMean(int layer, int firstPosition, int positionCount) {
    return expected(layer, firstPosition, positionCount, false);
  }

  /**
   * What expected-attention takes as query covariance, of a calibration that has covariances.
   *
   * @param layer a layer of which rows have been added
   * @param firstPosition the first position to come
   * @param positionCount how many positions count, at most 65,536; the paper has 512
   * @return [query heads, key head dim, key head dim]
   */
  public float[] queryCovariance(int layer, int firstPosition, int positionCount) {
    return expected(layer, firstPosition, positionCount, true);
  }

  private float[] expected(int layer, int firstPosition, int positionCount, boolean covariance) {
    Memory.count(layer, "layer");
    Memory.count(firstPosition, "firstPosition");
    Memory.count(positionCount, "positionCount");
    LayerGeometry shape = geometry.evicted(layer);
    int dim = shape.keyHeadDim();
    int mean = shape.queryHeads() * dim;
    int all = covariance ? Math.multiplyExact(mean, dim) : 0;
    int end = Math.multiplyExact(Float.BYTES, Math.addExact(mean, all));
    long calibration = enterAlone();
    try (Struct out = new Struct(end + 1)) {
      Native.kvevict_calibration_query_mean(calibration, layer, firstPosition, positionCount,
          out.address, mean, covariance ? out.address + Float.BYTES * (long) mean : 0, all);
      return covariance ? out.floatsAt(Float.BYTES * mean, all) : out.floatsAt(0, mean);
    } finally {
      leave();
    }
  }

  /**
   * The sums as bytes, for {@link #load} on any machine.
   *
   * @return the bytes, with a version and a CRC-32 among them
   */
  public byte[] save() {
    long calibration = enterAlone();
    try {
      byte[] data = new byte[Math.toIntExact(Native.kvevict_calibration_save(calibration, 0, 0))];
      ByteBuffer out = ByteBuffer.allocateDirect(data.length);
      Native.kvevict_calibration_save(calibration, Memory.address(out, "data"), data.length);
      out.get(data);
      return data;
    } finally {
      leave();
    }
  }

  /**
   * Adds the sums that {@link #save} returned, of a model with the same layers, heads and RoPE: it
   * restores them in a new calibration, and joins two parts of a corpus in another. An error adds
   * nothing.
   *
   * @param data the bytes
   */
  public void load(byte[] data) {
    ByteBuffer in = ByteBuffer.allocateDirect(data.length + 1).put(0, data);
    long calibration = enterAlone();
    try {
      Native.kvevict_calibration_load(calibration, Memory.address(in, "data"), data.length);
    } finally {
      leave();
      Reference.reachabilityFence(in);
    }
  }
}
