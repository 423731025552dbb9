package dev.kvevict;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.Random;

/** Small caches for the tests, token-major [token, head, D] f32. */
final class Caches {
  static final int QH = 4;
  static final int KVH = 2;
  static final int D = 8;

  private Caches() {}

  static ByteBuffer bytes(int n) {
    return ByteBuffer.allocateDirect(n).order(ByteOrder.nativeOrder());
  }

  static FloatBuffer floats(int n) {
    return bytes(4 * n).asFloatBuffer();
  }

  static FloatBuffer random(int n, long seed) {
    FloatBuffer buffer = floats(n);
    Random random = new Random(seed);
    for (int i = 0; i < n; ++i) {
      buffer.put(i, (float) random.nextGaussian());
    }
    return buffer;
  }

  static FloatBuffer copy(FloatBuffer from) {
    return floats(from.capacity()).put(0, from, 0, from.capacity());
  }

  /** Rows of nHeads heads. */
  static Plane plane(FloatBuffer data, int nHeads) {
    return Plane.of(data, DType.F32, D, nHeads * D * 4, D * 4);
  }

  static View view(FloatBuffer k, FloatBuffer v) {
    return View.of(KVH, plane(k, KVH), plane(v, KVH));
  }

  static Plan plan(Context context, int nLayers, int maxTokens, String policy) {
    Geometry geometry = Geometry.builder().layers(nLayers).queryHeads(QH).kvHeads(KVH).headDim(D)
        .maxTokens(maxTokens).build();
    return context.newPlan(geometry, Policy.parse(policy));
  }
}
