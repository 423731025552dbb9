import dev.kvevict.*;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** A small engine that owns its cache and uses kvevict; bindings/examples/engine has the model. */
final class Engine {
  static final int L = 2, QH = 4, KVH = 2, D = 16, X = QH * D, KV = KVH * D, MAX = 160;
  static final int PROMPT = 104, STEPS = 12, DRAFTS = 3;

  final int seed;
  final Sequence sequence;
  final FloatBuffer[] k = new FloatBuffer[L]; // the cache, by slot
  final FloatBuffer[] v = new FloatBuffer[L];
  final FloatBuffer[] q = new FloatBuffer[L]; // the queries of one token
  final int[] x = new int[X];
  long checksum = Long.parseUnsignedLong("14695981039346656037");

  Engine(int seed, Sequence sequence) {
    this.seed = seed;
    this.sequence = sequence;
    for (int l = 0; l < L; ++l) {
      q[l] = floats(X);
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

  void attend(int layer, int slots) {
    for (int h = 0; h < QH; ++h) {
      double sum = 0;
      double[] out = new double[D];
      for (int s = 0; s < slots; ++s) {
        int at = s * KV + h / (QH / KVH) * D;
        double dot = 0;
        for (int i = 0; i < D; ++i) {
          dot += (double) q[layer].get(h * D + i) * k[layer].get(at + i);
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

  /** Runs a token through all layers; returns the next one. */
  int step(int token) {
    int position = sequence.logicalLength();
    for (int i = 0; i < X; ++i) {
      x[i] = (hash((token * 1024 + position) * X + i) >>> 28) - 8;
    }
    for (int l = 0; l < L; ++l) {
      int slot = sequence.storedLength(l);
      for (int i = 0; i < X; ++i) {
        q[l].put(i, x[(5 * i + 3 * l + 1) % X]);
      }
      for (int i = 0; i < KV; ++i) {
        k[l].put(slot * KV + i, x[(7 * i + l) % X]);
        v[l].put(slot * KV + i, x[(3 * i + 2 * l + 5) % X]);
      }
      sequence.observe(l, rows(q[l], QH), 1, position);
      attend(l, slot + 1);
    }
    sequence.append(1);
    return IntStream.range(0, X).map(i -> (x[i] + 8) * (i + 1)).sum() % 256;
  }

  /** Steps through a token and drafts, takes back the wrong ones, and returns the next token. */
  int speculate(int token) {
    int length = sequence.logicalLength(), accepted = 0, next = 0;
    boolean right = true;
    for (int i = 0; i <= DRAFTS; ++i) {
      int said = step(token);
      // This stands for a draft model that is wrong now and then.
      token = said ^ (1 >> (hash(1000 + length + i) & 3));
      if (right) {
        ++accepted;
        next = said;
        right = token == said;
        for (int value : x) {
          checksum = (checksum ^ (value + 8)) * 1099511628211L;
        }
      }
    }
    sequence.trimTo(length + accepted);
    return next;
  }

  void run(Plan plan) {
    List<View> views = new ArrayList<>();
    for (int l = 0; l < L; ++l) {
      views.add(View.of(KVH, rows(k[l], KVH), rows(v[l], KVH)));
    }
    ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
    int token = 0;
    for (int i = 0; i < PROMPT; ++i) {
      token = step(hash(i) & 255);
    }
    sequence.evict(views, workspace);
    for (int i = 0; i < STEPS; ++i) {
      token = speculate(token);
      sequence.evict(views, workspace);
    }
    for (int i = 0; i < L * KVH; ++i) {
      System.out.printf("layer %d head %d keeps %s%n", i / KVH, i % KVH,
          IntStream.of(sequence.keepPositions(i / KVH, i % KVH)).mapToObj(Integer::toString)
              .collect(Collectors.joining(" ")));
    }
    System.out.printf("length %d, last token %d, checksum %016x%n", sequence.logicalLength(), token,
        checksum);
  }

  public static void main(String[] args) {
    Geometry model = Geometry.builder().layers(L).queryHeads(QH).kvHeads(KVH).headDim(D)
        .maxTokens(MAX).build();
    try (Context context = Context.create();
        Plan plan = context.newPlan(model, Policy.parse("snapkv:budget=40,window=8,sink=2"),
            PlanOptions.NONE.withDraftTokens(DRAFTS)); // of which all may be taken back
        Sequence sequence = plan.newSequence()) {
      sequence.beginObserving();
      new Engine(args.length > 0 ? Integer.parseUnsignedInt(args[0]) : 1, sequence).run(plan);
    }
  }
}
