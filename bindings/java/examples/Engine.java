import dev.kvevict.*;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * A small engine that owns its cache and uses kvevict; bindings/examples/engine/README.md has the
 * model.
 */
final class Engine {
  static final int L = 2, QH = 4, KVH = 2, D = 16, X = QH * D, KV = KVH * D, MAX = 160;
  static final int PROMPT = 96, GUESSED = 8, DECODED = 24;

  final int seed;
  final Sequence sequence;
  final FloatBuffer[] k = new FloatBuffer[L]; // the cache, by slot
  final FloatBuffer[] v = new FloatBuffer[L];
  final FloatBuffer[] q = new FloatBuffer[L]; // queries by position, to take back
  final int[] x = new int[X];

  Engine(int seed, Sequence sequence) {
    this.seed = seed;
    this.sequence = sequence;
    for (int l = 0; l < L; ++l) {
      q[l] = floats(MAX * X);
      k[l] = floats(MAX * KV);
      v[l] = floats(MAX * KV);
    }
  }

  static FloatBuffer floats(int n) {
    return ByteBuffer.allocateDirect(4 * n).order(ByteOrder.nativeOrder()).asFloatBuffer();
  }

  /** Rows of so many heads, one after the other. */
  static Plane rows(FloatBuffer data, int heads) {
    return Plane.tokenMajor(data, DType.F32, heads, D);
  }

  int hash(int a) {
    int h = (a ^ seed) * (int) 2654435761L;
    h = (h ^ (h >>> 15)) * (int) 2246822519L;
    return h ^ (h >>> 13);
  }

  /** A token out of a hash. */
  int token(int a) {
    return hash(a) & 255;
  }

  /** Shows n rows of the query log. */
  void observe(int layer, int first, int n) {
    sequence.observe(layer, rows(q[layer], QH).from((long) first * X * 4), n, first);
  }

  void attend(int layer, int slots, int queries) {
    for (int h = 0; h < QH; ++h) {
      double sum = 0;
      double[] out = new double[D];
      for (int s = 0; s < slots; ++s) {
        int at = s * KV + h / (QH / KVH) * D;
        double dot = 0;
        for (int i = 0; i < D; ++i) {
          dot += (double) q[layer].get(queries + h * D + i) * k[layer].get(at + i);
        }
        double weight = dot > 0 ? 1 + dot * dot : 1;
        for (int i = 0; i < D; ++i) {
          out[i] += weight * v[layer].get(at + i);
        }
        sum += weight;
      }
      for (int i = 0; i < D; ++i) {
        x[h * D + i] = ((x[h * D + i] + (int) Math.floor(4 * (out[i] / sum) + 0.5) + 8) & 15) - 8;
      }
    }
  }

  /** One token through all layers; returns the next one. */
  int step(int token) {
    int position = sequence.logicalLength();
    for (int i = 0; i < X; ++i) {
      x[i] = (hash((token * 1024 + position) * X + i) >>> 28) - 8;
    }
    for (int l = 0; l < L; ++l) {
      int slot = sequence.storedLength(l);
      for (int i = 0; i < X; ++i) {
        q[l].put(position * X + i, x[(5 * i + 3 * l + 1) % X]);
      }
      for (int i = 0; i < KV; ++i) {
        k[l].put(slot * KV + i, x[(7 * i + l) % X]);
        v[l].put(slot * KV + i, x[(3 * i + 2 * l + 5) % X]);
      }
      observe(l, position, 1);
      attend(l, slot + 1, position * X);
    }
    sequence.append(1);
    return IntStream.range(0, X).map(i -> (x[i] + 8) * (i + 1)).sum() % 256;
  }

  void run(Plan plan) {
    List<View> views = new ArrayList<>();
    for (int l = 0; l < L; ++l) {
      views.add(View.of(KVH, rows(k[l], KVH), rows(v[l], KVH)));
    }
    IntStream.range(0, PROMPT).forEach(i -> step(token(i)));
    IntStream.range(0, GUESSED).forEach(i -> step(token(1000 + i)));
    sequence.reset(); // the cache has every row still: start over and show what stays
    IntStream.range(0, L).forEach(l -> observe(l, 0, PROMPT));
    sequence.append(PROMPT);
    int token = 0;
    for (int i = PROMPT; i < PROMPT + GUESSED; ++i) {
      token = step(token(i));
    }
    sequence.evict(views, plan.workspace(Operation.EVICT).allocate());
    for (int i = 0; i < L * KVH; ++i) {
      System.out.printf("layer %d head %d keeps %s%n", i / KVH, i % KVH,
          IntStream.of(sequence.keepPositions(i / KVH, i % KVH)).mapToObj(Integer::toString)
              .collect(Collectors.joining(" ")));
    }
    long checksum = Long.parseUnsignedLong("14695981039346656037");
    for (int i = 0; i < DECODED; ++i) {
      token = step(token);
      for (int value : x) {
        checksum = (checksum ^ (value + 8)) * 1099511628211L;
      }
    }
    System.out.printf("last token %d, checksum %016x%n", token, checksum);
  }

  public static void main(String[] args) {
    Geometry model = Geometry.builder().layers(L).queryHeads(QH).kvHeads(KVH).headDim(D)
        .maxTokens(MAX).build();
    try (Context context = Context.create();
        Plan plan = context.newPlan(model, Policy.parse("snapkv:budget=40,window=8,sink=2"));
        Sequence sequence = plan.newSequence()) {
      sequence.beginObserving();
      new Engine(args.length > 0 ? Integer.parseUnsignedInt(args[0]) : 1, sequence).run(plan);
    }
  }
}
