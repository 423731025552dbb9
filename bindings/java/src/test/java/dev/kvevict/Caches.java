package dev.kvevict;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.List;
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

  /** Rows of headCount heads. */
  static Plane plane(FloatBuffer data, int headCount) {
    return Plane.of(data, DType.F32, D, headCount * D * 4, D * 4);
  }

  static View view(FloatBuffer k, FloatBuffer v) {
    return View.of(KVH, plane(k, KVH), plane(v, KVH));
  }

  static IntBuffer ints(int... values) {
    return bytes(4 * values.length).asIntBuffer().put(0, values);
  }

  /** Scores, a row of so many tokens per head. */
  static Plane scores(FloatBuffer data, int tokenCount) {
    return Plane.of(data, DType.F32, 1, 4, 4L * tokenCount);
  }

  static SignalInputs queries(Plane rows) {
    return SignalInputs.NONE.withQueries(rows);
  }

  /** One layer's scores, by queries. */
  static List<ScoreJob> jobs(View view, int tokenCount, Plane queries, FloatBuffer scores) {
    return List.of(
        ScoreJob.of(0, tokenCount, scores).withView(view).withInputs(queries(queries)));
  }

  /** A move of one layer by lists of an array. */
  static List<Move> moves(View view, int tokenCount, int listCount, int... slots) {
    return List.of(Move.of(view, tokenCount, KeepLists.of(listCount, slots)));
  }

  /** A move that only asks for sizes. */
  static List<Move> sized(View view, int listCount, int count) {
    return List.of(Move.of(view, 0, KeepLists.at(0, 0, listCount, count)));
  }

  static Plan plan(
      Context context, int layerCount, int maxTokens, String policy, int... headBudgets) {
    Geometry geometry = Geometry.builder().layers(layerCount).queryHeads(QH).kvHeads(KVH).headDim(D)
        .maxTokens(maxTokens).build();
    return context.newPlan(
        geometry, Policy.parse(policy), PlanOptions.NONE.withHeadBudgets(headBudgets));
  }
}
