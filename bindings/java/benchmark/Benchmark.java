package dev.kvevict;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * What a call costs, in ns: plain C (bindings/benchmark/call_cost.c), minimal JNI (by_hand.c), and
 * the public layer, on the same work in the same run. Arguments: the call_cost program, the library
 * of by_hand.c.
 */
final class Benchmark {
  private static final int LAYERS = 2;
  private static final int QH = 8;
  private static final int KVH = 2;
  private static final int D = 64;
  private static final int TOKENS = 256;
  private static final int WINDOW = 8;

  private static int sink;

  private Benchmark() {}

  private static native void handInit(FloatBuffer q, FloatBuffer k, FloatBuffer v);

  private static native int handNoOp();

  private static native int handLength();

  private static native void handScore(
      FloatBuffer scores, int scoresLength, ByteBuffer workspace, int workspaceBytes);

  private static native void handReset();

  private static native void handObserve(int layer);

  private static native void handAppend();

  private static native void handEvict(ByteBuffer workspace, int workspaceBytes);

  private interface Loop {
    void run(int n);
  }

  public static void main(String[] args) throws IOException {
    Map<String, Double> plainC = plainC(args[0]);
    System.load(args[1]);
    FloatBuffer q = rows(QH);
    FloatBuffer k = rows(LAYERS * KVH);
    FloatBuffer v = rows(LAYERS * KVH);
    handInit(q, k, v);
    try (Context context = Context.create();
        Plan plan = context.newPlan(Geometry.builder().layers(LAYERS).queryHeads(QH).kvHeads(KVH)
            .headDim(D).maxTokens(TOKENS).build(), Policy.parse("snapkv:budget=64,window=8"));
        Sequence sequence = plan.newSequence()) {
      sequence.beginObserving();
      ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
      ByteBuffer scoring = plan.workspace(Operation.SCORE).allocate();
      FloatBuffer scores = floats(KVH * TOKENS);
      Plane queries = Plane.of(q, DType.F32, D, QH * D * 4, D * 4);
      View first = view(k, v, 0);
      List<ScoreJob> jobs = List.of(ScoreJob.of(0, TOKENS, scores).withView(first)
          .withInputs(SignalInputs.NONE.withQueries(queries)));
      List<View> views = List.of(first, view(k, v, 1));

      System.out.printf("%-12s%10s%10s%10s%12s%n", "ns per call", "plain C", "by hand", "kvevict",
          "/ by hand");
      report("no-op", plainC, n -> {
        for (int i = 0; i < n; ++i) {
          sink += handNoOp();
        }
      }, n -> {
        for (int i = 0; i < n; ++i) {
          sink += KvEvict.abiVersion();
        }
      });
      report("length", plainC, n -> {
        for (int i = 0; i < n; ++i) {
          sink += handLength();
        }
      }, n -> {
        for (int i = 0; i < n; ++i) {
          sink += sequence.storedLength(0);
        }
      });
      report("score", plainC, n -> {
        for (int i = 0; i < n; ++i) {
          handScore(scores, scores.capacity(), scoring, scoring.capacity());
        }
      }, n -> {
        for (int i = 0; i < n; ++i) {
          plan.score(jobs, scoring);
        }
      });
      report("evict", plainC, n -> {
        for (int i = 0; i < n; ++i) {
          handReset();
          for (int l = 0; l < LAYERS; ++l) {
            handObserve(l);
          }
          handAppend();
          handEvict(workspace, workspace.capacity());
        }
      }, n -> {
        for (int i = 0; i < n; ++i) {
          sequence.reset();
          for (int l = 0; l < LAYERS; ++l) {
            sequence.observe(l, queries, WINDOW, TOKENS - WINDOW);
          }
          sequence.append(TOKENS);
          sequence.evict(views, workspace);
        }
      });
    }
  }

  private static FloatBuffer floats(int n) {
    return ByteBuffer.allocateDirect(4 * n).order(ByteOrder.nativeOrder()).asFloatBuffer();
  }

  private static FloatBuffer rows(int heads) {
    FloatBuffer rows = floats(TOKENS * heads * D);
    for (int i = 0; i < rows.capacity(); ++i) {
      rows.put(i, i * 37L % 101 / 50f - 1);
    }
    return rows;
  }

  private static View view(FloatBuffer k, FloatBuffer v, int layer) {
    int n = TOKENS * KVH * D;
    return View.of(KVH, Plane.of(k.slice(layer * n, n), DType.F32, D, KVH * D * 4, D * 4),
        Plane.of(v.slice(layer * n, n), DType.F32, D, KVH * D * 4, D * 4));
  }

  /** They take turns, so that a change of the machine's clock meets both; the first rounds compile. */
  private static void report(String name, Map<String, Double> plainC, Loop byHand, Loop layer) {
    double hand = Double.MAX_VALUE;
    double mine = Double.MAX_VALUE;
    for (int round = 0; round < 40; ++round) {
      hand = Math.min(hand, measure(byHand));
      mine = Math.min(mine, measure(layer));
    }
    System.out.printf("%-12s%10.1f%10.1f%10.1f%12.2f%n", name, plainC.get(name), hand, mine,
        mine / hand);
  }

  /** A batch of 20 ms. */
  private static double measure(Loop loop) {
    long calls = 0;
    long begin = System.nanoTime();
    long elapsed;
    do {
      loop.run(64);
      calls += 64;
      elapsed = System.nanoTime() - begin;
    } while (elapsed < 20_000_000);
    return (double) elapsed / calls;
  }

  private static Map<String, Double> plainC(String program) throws IOException {
    Map<String, Double> rows = new HashMap<>();
    try (BufferedReader lines = new ProcessBuilder(program).start().inputReader()) {
      lines.lines().map(line -> line.split(" "))
          .forEach(row -> rows.put(row[0], Double.parseDouble(row[1])));
    }
    return rows;
  }
}
