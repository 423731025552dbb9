package dev.kvevict;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** Score, select, compact: every shape of their arguments means the same. */
final class DoorsTest {
  private static final int N = 48;
  private static final int ROW = Caches.KVH * Caches.D;

  private DoorsTest() {}

  static void scoresOfBuffersAndAddressesAreEqual() {
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, 64, "snapkv:budget=16,window=4")) {
      FloatBuffer k = Caches.random(N * ROW, 1);
      Plane queries = Caches.plane(Caches.random(4 * Caches.QH * Caches.D, 2), Caches.QH);
      View view = Caches.view(k, Caches.random(N * ROW, 3));
      ByteBuffer workspace = plan.workspace(Operation.SCORE).allocate();
      FloatBuffer first = Caches.floats(Caches.KVH * N);
      plan.score(Caches.jobs(view, N, queries, first), workspace);
      FloatBuffer second = Caches.floats(Caches.KVH * N);
      Plane lse = Plane.of(Caches.floats(4 * Caches.QH), DType.F32, 1, Caches.QH * 4, 4);
      plan.score(List.of(
          ScoreJob.of(0, N, Memory.address(second, "second"), second.remaining())
              .withView(view).withTokenCounts(Caches.ints(N, N))
              .withInputs(Caches.queries(queries).withRowLse(lse))),
          Memory.address(workspace, "workspace"), workspace.remaining(), 0);
      Check.equal(first, second);
      Check.equal(Float.POSITIVE_INFINITY, first.get(N - 1)); // a kept window
      Check.that(first.get(0) > 0 && first.get(0) < 1, "a mean of weights: " + first.get(0));
    }
  }

  static void policiesWithoutQueriesScoreToo() {
    FloatBuffer first = Caches.floats(Caches.KVH * N);
    FloatBuffer second = Caches.floats(Caches.KVH * N);
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 2, 64, "random:sink=0,budget=16,seed=7");
        Plan none = Caches.plan(context, 2, 64, "streaming-llm:budget=16")) {
      ByteBuffer workspace = plan.workspace(Operation.SCORE).allocate();
      plan.score(
          List.of(ScoreJob.of(0, N, first), ScoreJob.of(1, N, second)), workspace);
      Check.that(!first.equals(second), "layers draw alike");
      Check.fails(KvEvictException.class,
          () -> plan.score(List.of(ScoreJob.of(2, N, first)), workspace), "layer 2");
      Check.fails(KvEvictException.class,
          () -> none.score(List.of(ScoreJob.of(0, N, first)), workspace), "nothing to score");
    }
  }

  /** Each with its own cache, queries and length, as by itself. */
  static void layersScoreInOneCall() {
    View[] views = new View[2];
    Plane[] queries = new Plane[2];
    for (int i = 0; i < 2; ++i) {
      views[i] = Caches.view(Caches.random(N * ROW, i), Caches.random(N * ROW, 2 + i));
      queries[i] = Caches.plane(Caches.random(4 * Caches.QH * Caches.D, 4 + i), Caches.QH);
    }
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 2, 64, "snapkv:budget=16,window=4")) {
      ByteBuffer workspace = plan.workspace(Operation.SCORE).allocate();
      List<ScoreJob> together = new ArrayList<>();
      List<FloatBuffer> scores = new ArrayList<>();
      for (int i = 0; i < 4; ++i) { // both, and then each alone
        int layer = i % 2;
        scores.add(Caches.floats(Caches.KVH * (N - layer)));
        ScoreJob job = ScoreJob.of(layer, N - layer, scores.get(i)).withView(views[layer])
            .withInputs(Caches.queries(queries[layer]));
        if (i < 2) {
          together.add(job);
        } else {
          plan.score(List.of(job), workspace);
        }
      }
      plan.score(together, workspace);
      Check.equal(scores.subList(2, 4), scores.subList(0, 2));
      Check.that(!scores.get(0).slice(0, 8).equals(scores.get(1).slice(0, 8)), "layers are alike");
      plan.score(List.of(), workspace);
      Check.fails(KvEvictException.class,
          () -> plan.score(Collections.nCopies(129, together.get(0)), workspace),
          "jobs_len 129 > 128");
    }
  }

  /** A caller's scores are pooled as the policy says. */
  static void scoresOfTheCallerAreShaped() {
    FloatBuffer given = Caches.random(Caches.KVH * N, 1);
    FloatBuffer shaped = Caches.floats(Caches.KVH * N);
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, 64, "custom:sink=0,budget=6,pool=max3")) {
      ScoreJob job = ScoreJob.of(0, N, shaped)
          .withInputs(SignalInputs.NONE.withScores(Caches.scores(given, N)));
      ByteBuffer workspace = plan.workspace(Operation.SCORE).allocate();
      plan.score(List.of(job), workspace);
      for (int i = 1; i < N - 1; ++i) {
        float sides = Math.max(given.get(N + i - 1), given.get(N + i + 1));
        Check.equal(Math.max(sides, given.get(N + i)), shaped.get(N + i));
      }
      Check.fails(KvEvictException.class,
          () -> plan.score(List.of(ScoreJob.of(0, N, shaped)), workspace), "scores");
      Plane less = Caches.scores(given.slice(0, 2 * N - 1), N);
      Check.fails(IllegalArgumentException.class, () -> plan.score(
          List.of(job.withInputs(SignalInputs.NONE.withScores(less))), workspace),
          "scores of layer 0 holds " + (N - 1) + " rows of 2 heads, not " + N);
    }
  }

  /** Sums as they are, and divided by the queries that saw a token: 5 the first, 1 the last. */
  static void accumulatedAttentionIsScored() {
    float[] sums = {5, 4, 3, 2, 1, 10, 8, 3, 0, 7};
    SignalInputs reduced = SignalInputs.NONE.withAttentionSums(
        Caches.scores(Caches.floats(sums.length).put(0, sums), 5)).withSumHeads(Caches.KVH);
    Check.equal(sums, accumulated("h2o", reduced));
    Check.equal(new float[] {1, 1, 1, 1, 1, 2, 2, 1, 0, 7}, accumulated("h2o:rows=mean", reduced));
    Plane all = Caches.scores(Caches.floats(20).put(0, sums).put(10, sums), 5);
    Check.equal(new float[] {10, 8, 3, 2, 7, 10, 8, 3, 2, 7},
        accumulated("h2o:group=max", SignalInputs.NONE.withAttentionSums(all).withSumHeads(0)));
    Check.fails(KvEvictException.class, () -> accumulated("h2o", SignalInputs.NONE),
        "attention_sums is NULL");
    Check.fails(KvEvictException.class,
        () -> accumulated("h2o", SignalInputs.NONE.withAttentionSums(all).withSumHeads(3)), "n_sum_heads 3");
    Check.fails(IllegalArgumentException.class,
        () -> SignalInputs.NONE.withAttentionSums(all).withSumHeads(-1), "sumHeads");
  }

  private static float[] accumulated(String policy, SignalInputs inputs) {
    FloatBuffer scores = Caches.floats(Caches.KVH * 5);
    try (Context context = Context.create(); Plan plan = Caches.plan(context, 1, 64, policy)) {
      plan.score(List.of(ScoreJob.of(0, 5, scores).withInputs(inputs)),
          plan.workspace(Operation.SCORE).allocate());
    }
    float[] got = new float[Caches.KVH * 5];
    scores.get(0, got);
    return got;
  }

  static void workspacesTellWhatTheyNeed() {
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 2, 64, "snapkv:budget=16,window=4");
        Plan custom = Caches.plan(context, 2, 64, "custom:sink=0,budget=16")) {
      for (Operation operation : Operation.values()) {
        Workspace sizes = plan.workspace(operation);
        Check.equal(64, sizes.alignment());
        Check.that(sizes.leastBytes() > 0 && sizes.leastBytes() <= sizes.bestBytes(),
            sizes.toString());
        ByteBuffer memory = sizes.allocate();
        Check.equal(sizes.bestBytes(), (long) memory.remaining());
        Check.equal(0L, Memory.address(memory, "memory") % 64);
        long few = plan.workspace(operation, 8).bestBytes();
        Check.that(operation == Operation.EVICT ? few < sizes.bestBytes() : few <= sizes.bestBytes(),
            sizes.toString());
      }
      long rows = 2L * 4 * Caches.QH * Caches.D * 4;
      Check.equal(new Records.Workspace(64, rows, rows, Device.CPU),
          plan.workspace(Operation.OBSERVE));
      Check.equal(0L, custom.workspace(Operation.OBSERVE).bestBytes());
      Check.fails(KvEvictException.class, () -> plan.workspace(Operation.EVICT, 65), "65");
    }
  }

  static void keepListsOfBuffersAndAddressesAreEqual() {
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, 64, "custom:budget=6,sink=1,recent=1")) {
      float[] scores = new float[Caches.KVH * N];
      for (int i = 0; i < scores.length; ++i) {
        scores[i] = (i * 37) % 101;
      }
      FloatBuffer direct = Caches.floats(scores.length).put(0, scores);
      Selection selection = plan.selection(0, N);
      Check.equal(List.of(Caches.KVH, 6), List.of(selection.listCount(), selection.count()));
      SelectOptions options = selection.options().withProtected(7);
      ByteBuffer workspace = context.selectWorkspace(N, Caches.KVH).allocate();

      IntBuffer buffer = Caches.ints(new int[Caches.KVH * 6]);
      context.select(
          options.withScores(direct), KeepLists.of(buffer, Caches.KVH, 6), workspace);
      IntBuffer raw = Caches.ints(new int[Caches.KVH * 6]);
      context.select(options.withScores(Memory.address(direct, "direct"), direct.remaining()),
          KeepLists.at(Memory.address(raw, "raw"), raw.remaining(), Caches.KVH, 6),
          Memory.address(workspace, "workspace"), workspace.remaining(), 0);
      Check.equal(buffer, raw);
      int[] first = new int[6];
      buffer.get(0, first);
      Check.equal(expectedKeep(scores), first);
    }
  }

  static void everyListMayHaveACountOfItsOwn() {
    FloatBuffer scores = Caches.floats(20);
    for (int i = 0; i < 10; ++i) {
      scores.put(i, i).put(10 + i, 9 - i);
    }
    IntBuffer slots = Caches.ints(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    IntBuffer counts = Caches.ints(4, 2);
    KeepLists lists = KeepLists.of(slots, 2, 4).withListStride(5).withCounts(counts);
    SelectOptions options = SelectOptions.of(10).withSinkCount(1);
    try (Context context = Context.create()) {
      ByteBuffer workspace = context.selectWorkspace(10, 2).allocate();
      Check.equal(context.selectWorkspace(10, 2).bestBytes(), (long) workspace.remaining());
      context.select(
          options.withScores(scores).withTokenCounts(Caches.ints(10, 6)), lists, workspace);
      Check.equal(Caches.ints(0, 7, 8, 9, -1, 0, 1, -1, -1, -1), slots);
      // Without scores the first or the last tokens stay.
      context.select(options.withTie(Tie.HIGHER_POSITION), lists, workspace);
      Check.equal(Caches.ints(0, 7, 8, 9, -1, 0, 9, -1, -1, -1), slots);
      // Two rows of a list are one.
      context.select(SelectOptions.of(10).withScores(scores).withRowCount(2).withReduce(Reduce.MAX).withRecentCount(1),
          KeepLists.of(slots, 1, 4), workspace);
      Check.equal(Caches.ints(0, 1, 8, 9), slots.slice(0, 4));
      counts.put(1, 5);
      Check.fails(KvEvictException.class, () -> context.select(options, lists, workspace),
          "keep.counts[1] 5 > 4");
      counts.put(1, 0);
      Check.fails(KvEvictException.class, () -> context.select(options, lists, workspace),
          "sink 1");
      Check.fails(IllegalArgumentException.class,
          () -> context.select(options, lists.withCounts(Caches.ints(4)), workspace),
          "counts has 1 elements, 2 are needed");
      Check.fails(IllegalArgumentException.class,
          () -> context.select(options, KeepLists.of(slots.asReadOnlyBuffer(), 2, 4), workspace),
          "slots is read-only");
      Check.fails(KvEvictException.class, () -> context.select(SelectOptions.of(10), lists, null),
          "workspace");
    }
  }

  static void rangesOfSlotsGoLastOrFirst() {
    IntBuffer slots = Caches.ints(-1, -1, -1, -1);
    SelectOptions options = SelectOptions.of(10)
        .withRanges(TokenRange.of(0, 1, -1), TokenRange.of(8, 9, 2));
    try (Context context = Context.create()) {
      context.select(options, KeepLists.of(slots, 1, 4),
          context.selectWorkspace(10, 1).allocate());
      Check.equal(Caches.ints(1, 2, 3, 8), slots);
    }
  }

  static void budgetsKeepAShareOfTheMass() {
    List<LayerScores> layers = List.of(
        LayerScores.of(Caches.floats(4).put(0, new float[] {1, 8, 4, 3}), 1),
        LayerScores.of(Caches.floats(4).put(0, new float[] {1, 1, 0, 5}), 2));
    try (Context context = Context.create()) {
      Check.equal(new int[] {2, 1}, context.budgetForMass(layers, MassOptions.of(0.75)));
      Check.equal(new int[] {2, 2},
          context.budgetForMass(layers, MassOptions.of(0.75).withEveryRow(true)));
      Check.equal(new int[] {2, 2, 1},
          context.budgetForMass(layers, MassOptions.of(0.75).withScope(Scope.KV_HEAD)));
      Check.equal(new int[] {2},
          context.budgetForMass(layers, MassOptions.of(0.9).withScope(Scope.MODEL)));
      Check.equal(new int[] {3, 2},
          context.budgetForMass(layers, MassOptions.of(0.75).withSinkCount(1).withRecentCount(1)));
      Check.equal(new int[0], context.budgetForMass(
          List.of(), MassOptions.of(0.5).withScope(Scope.MODEL)));
      Check.fails(KvEvictException.class,
          () -> context.budgetForMass(layers, MassOptions.of(0)), "mass 0");
      Check.fails(IllegalArgumentException.class,
          () -> LayerScores.of(Caches.floats(4), 3), "3 rows");
    }
  }

  /** Two layers in one call: one list for all heads, and lists of 3 and 2. */
  static void allLayersMoveInOneCall() {
    FloatBuffer[] k = {Caches.random(N * ROW, 4), Caches.random(N * ROW, 5)};
    FloatBuffer[] before = {Caches.copy(k[0]), Caches.copy(k[1])};
    View[] views = {Caches.view(k[0], Caches.copy(k[0])), Caches.view(k[1], Caches.copy(k[1]))};
    int[] slots = {1, 5, 9, 2, 40, 0};
    KeepLists ragged = KeepLists.of(2, slots).withCounts(Caches.ints(3, 2));
    try (Context context = Context.create()) {
      List<Move> moves = List.of(Move.of(views[0], N, KeepLists.of(1, 1, 5, 9)),
          Move.of(views[1], N, ragged));
      Check.equal(0L, context.compactWorkspace(moves).bestBytes());
      context.compact(moves);
      for (int i = 0; i < 5; ++i) {
        int head = i / 3;
        row(k[0], i % 3, head, before[0], slots[i % 3]);
        row(k[1], i % 3, head, before[1], slots[i]);
      }
      List<Move> merging = List.of(
          Move.of(views[0], 3, KeepLists.of(1, 0)).withMerge(Merge.PIVOT).withMergeThreshold(0.5).withMergeFraction(0.5));
      Check.that(context.compactWorkspace(merging).leastBytes() > 0, "merging needs a workspace");
      Check.fails(KvEvictException.class, () -> context.compact(merging), "the least");
      // The rows are back to front.
      moves = List.of(Move.of(views[0], 3, KeepLists.of(1, 2, 1, 0)),
          Move.of(views[1], 3,
              KeepLists.of(2, 2, 1, 0, 1, 0, 9).withCounts(Caches.ints(3, 2))));
      context.reorder(moves, context.reorderWorkspace(moves).allocate());
      for (int i = 0; i < 5; ++i) {
        int n = i < 3 ? 3 : 2;
        row(k[0], i % 3, i / 3, before[0], slots[2 - i % 3]);
        row(k[1], i % 3, i / 3, before[1], slots[i / 3 * 3 + n - 1 - i % 3]);
      }
      Move first = Move.of(views[0], 3, KeepLists.of(1, 0));
      Check.fails(
          KvEvictException.class, () -> context.compact(List.of(first, first)), "moves[1]");
      Check.fails(KvEvictException.class,
          () -> context.compact(Collections.nCopies(129, first)), "moves_len 129 > 128");
      context.compact(List.of());
    }
  }

  /** Heads of different lengths: one keeps a slot that another has not. */
  static void movesMayHaveTokenCounts() {
    FloatBuffer k = Caches.random(N * ROW, 4);
    FloatBuffer before = Caches.copy(k);
    View view = Caches.view(k, Caches.copy(k));
    Move move = Move.of(view, 10, KeepLists.of(2, 3, 9, 1, 4));
    IntBuffer counts = Caches.ints(10, 5);
    try (Context context = Context.create()) {
      context.compact(List.of(move.withTokenCounts(counts)));
      for (int i = 0; i < 4; ++i) {
        row(k, i % 2, i / 2, before, new int[] {3, 9, 1, 4}[i]);
      }
      counts.put(1, 4);
      Check.fails(KvEvictException.class,
          () -> context.compact(List.of(move.withTokenCounts(counts))), "4");
      long address = Memory.address(counts, "counts");
      Check.fails(KvEvictException.class,
          () -> context.compact(List.of(move.withTokenCounts(address))), "4");
      counts.put(1, 11);
      Check.fails(KvEvictException.class,
          () -> context.compact(List.of(move.withTokenCounts(counts))), "11");
    }
  }

  /** Compacts from a slot on in place, and to another cache, which alone changes then. */
  static void movesMayGoFromASlotOnAndToAnotherCache() {
    FloatBuffer k = Caches.random(N * ROW, 4);
    FloatBuffer before = Caches.copy(k);
    FloatBuffer to = Caches.random(8 * ROW, 5);
    FloatBuffer toBefore = Caches.copy(to);
    View view = Caches.view(k, Caches.copy(k));
    View destination = Caches.view(to, Caches.copy(to));
    Move move = Move.of(view, N, KeepLists.of(1, 12, 40));
    try (Context context = Context.create()) {
      List<Move> tail = List.of(move.withFirstSlot(10));
      Check.equal(0L, context.compactWorkspace(tail).bestBytes());
      context.compact(tail);
      for (int head = 0; head < 2; ++head) {
        row(k, 9, head, before, 9);
        row(k, 10, head, before, 12);
        row(k, 11, head, before, 40);
      }
      Check.fails(KvEvictException.class,
          () -> context.compact(List.of(move.withFirstSlot(13))), "[13, n_tokens");
      Check.fails(IllegalArgumentException.class, () -> move.withFirstSlot(-1), "firstSlot");

      before = Caches.copy(k);
      Move copy = move.withDestination(destination);
      context.compactWorkspace(List.of(copy.withFirstSlot(6)));
      context.compact(List.of(copy.withFirstSlot(6)));
      Check.equal(before, k);
      for (int head = 0; head < 2; ++head) {
        row(to, 5, head, toBefore, 5);
        row(to, 6, head, before, 12);
        row(to, 7, head, before, 40);
      }
      Check.fails(IllegalArgumentException.class,
          () -> context.compact(List.of(copy.withFirstSlot(7))), "k");
      Check.fails(KvEvictException.class,
          () -> context.compact(List.of(move.withDestination(view))),
          "destination is the view itself");
    }
  }

  /** Rows are quantized on their way to another cache, and read on the way back. */
  static void rowsAreStoredAnew() {
    int heads = Caches.KVH;
    int[] slots = {1, 4, 7};
    FloatBuffer source = Caches.random(8 * ROW, 1);
    FloatBuffer back = Caches.floats(3 * ROW);
    ByteBuffer codes = Caches.bytes(3 * ROW);
    FloatBuffer scales = Caches.floats(3 * heads);
    FloatBuffer minima = Caches.floats(3 * heads);
    Plane ofCodes = Plane.of(codes, DType.U8, Caches.D, ROW, Caches.D);
    View quantized = View.builder(heads).k(ofCodes)
        .companion(Plane.of(scales, DType.F32, 1, 4 * heads, 4).withRole(Role.KEY_SCALE))
        .companion(Plane.of(minima, DType.F32, 1, 4 * heads, 4).withRole(Role.KEY_MINIMUM))
        .build();
    View plain = View.of(heads, Caches.plane(source, heads), null);
    Move move = Move.of(plain, 8, KeepLists.of(1, slots));
    try (Context context = Context.create()) {
      context.compact(List.of(move.withDestination(quantized)));
      context.compact(List.of(Move.of(quantized, 3, KeepLists.of(1, 0, 1, 2))
          .withDestination(View.of(heads, Caches.plane(back, heads), null))));
      for (int i = 0; i < 3 * heads; ++i) {
        float least = Float.POSITIVE_INFINITY;
        float most = Float.NEGATIVE_INFINITY;
        for (int e = 0; e < Caches.D; ++e) {
          float v = source.get(slots[i / heads] * ROW + i % heads * Caches.D + e);
          least = Math.min(least, v);
          most = Math.max(most, v);
          float off = Math.abs(back.get(i * Caches.D + e) - v);
          Check.that(off <= 0.5001f * scales.get(i), i + ", " + e + ": " + off);
        }
        Check.equal(least, minima.get(i));
        Check.equal((most - least) / 255, scales.get(i));
      }
      Check.fails(KvEvictException.class,
          () -> context.compact(List.of(move.withDestination(View.of(heads, ofCodes, null)))),
          "scale");
    }
  }

  private static void row(FloatBuffer cache, int slot, int head, FloatBuffer before, int from) {
    Check.equal(before.slice((from * 2 + head) * Caches.D, Caches.D),
        cache.slice((slot * 2 + head) * Caches.D, Caches.D));
  }

  /** Sink 0, protected 7, recent N - 1 and the three highest others of head 0. */
  private static int[] expectedKeep(float[] scores) {
    Integer[] order = java.util.stream.IntStream.range(1, N - 1).filter(i -> i != 7).boxed()
        .sorted((a, b) -> Float.compare(scores[b], scores[a])).toArray(Integer[]::new);
    return java.util.stream.IntStream.of(0, 7, N - 1, order[0], order[1], order[2]).sorted()
        .toArray();
  }

  static void rowsMoveAsTheKeepListSays() {
    int[] keep = {0, 3, 5, 1, 2, 47}; // per head
    try (Context context = Context.create()) {
      FloatBuffer k = Caches.random(N * ROW, 4);
      FloatBuffer before = Caches.copy(k);
      FloatBuffer v = Caches.random(N * ROW, 5);
      context.compact(Caches.moves(Caches.view(k, v), N, 2, keep));
      for (int head = 0; head < 2; ++head) {
        for (int slot = 0; slot < 3; ++slot) {
          for (int e = 0; e < Caches.D; ++e) {
            Check.equal(before.get((keep[head * 3 + slot] * 2 + head) * Caches.D + e),
                k.get((slot * 2 + head) * Caches.D + e));
          }
        }
      }
      FloatBuffer again = Caches.copy(before);
      View other = Caches.view(again, Caches.random(N * ROW, 5));
      context.compact(List.of(Move.of(other, N, KeepLists.of(Caches.ints(keep), 2, 3))));
      Check.equal(k.limit(3 * ROW), again.limit(3 * ROW));
      Check.fails(KvEvictException.class,
          () -> context.compact(Caches.moves(Caches.view(k.clear(), v), N, 1, 3, 2)), "keep");
    }
  }

  /** Keys, then values of two tokens in blocks that were allocated one by one. */
  static void blocksWithAddresses() {
    int half = 2 * ROW;
    List<FloatBuffer> blocks = List.of(
        Caches.random(2 * half, 8), Caches.random(2 * half, 9), Caches.random(2 * half, 10));
    for (int[] ids : new int[][] {{0, 1, 2}, {6, 0, 3}}) {
      boolean byId = ids[0] == 6;
      LongBuffer table = Caches.bytes(7 * 8).asLongBuffer(); // the others stay 0
      List<FloatBuffer> was = new ArrayList<>();
      for (int i = 0; i < 3; ++i) {
        was.add(Caches.copy(blocks.get(i)));
        table.put(ids[i], Memory.address(blocks.get(i), "block"));
      }
      Plane k = Plane.at(0, DType.F32, ROW / 2, ROW * 4, ROW * 2).withAddressTable(table);
      View.Builder builder = View.builder(2).k(k).v(k.from(half * 4));
      if (byId) {
        builder.paged(2, Caches.ints(ids));
      } else {
        builder.blockSize(2);
      }
      try (Context context = Context.create(); View view = builder.build();
          View shared = builder.sharedBlockCount(1).build()) {
        context.compact(Caches.moves(view, 6, 1, 1, 4, 5));
        int[] kept = {1, 4, 5};
        for (int slot = 0; slot < 3; ++slot) {
          for (int place : new int[] {3, half + 3}) {
            Check.equal(was.get(kept[slot] / 2).get(kept[slot] % 2 * ROW + place),
                blocks.get(slot / 2).get(slot % 2 * ROW + place));
          }
        }
        Check.fails(KvEvictException.class,
            () -> context.compact(Caches.moves(shared, 6, 1, 1, 4, 5)), "n_shared_blocks 1");
        table.put(ids[2], 0); // read when calls are made
        view.validate(4);
        Check.fails(KvEvictException.class, () -> view.validate(5), "is 0, but block 2");
      }
    }
    Check.fails(IllegalArgumentException.class,
        () -> Caches.plane(blocks.get(0), 2).withAddressTable(8, 1), "use Plane.at()");
  }

  /** [groups, tokens, elements of a group] of one head, as a ring. */
  static void groupsOfElementsInARing() {
    FloatBuffer data = Caches.floats(10 * 4);
    for (int t = 0; t < 10; ++t) {
      data.put((t + 7) % 10 * 2 + 20 + 1, t); // element 3
    }
    Plane k = Plane.of(data, DType.F32, 4, 8, 0).withGroupElements(2).withGroupStride(80);
    try (Context context = Context.create(); View view = View.builder(1).k(k).ringSlots(10).ringFirst(7).build();
        View longer = View.builder(1).k(k).ringSlots(11).ringFirst(7).build()) {
      context.compact(Caches.moves(view, 10, 1, 2, 5, 8));
      for (int slot = 0; slot < 3; ++slot) {
        Check.equal(2f + 3 * slot, data.get((slot + 7) % 10 * 2 + 21));
      }
      // All of a ring is in memory.
      Check.fails(IllegalArgumentException.class, () -> longer.validate(1),
          "k holds 10 rows of 1 heads, not 11");
    }
  }

  /** Blocks of a pool in any order, values opaque, scales along. */
  static void pagedCachesAndCompanions() {
    int[] blocks = {2, 0, 3};
    IntBuffer table = Caches.bytes(12).asIntBuffer().put(0, blocks);
    ByteBuffer values = Caches.bytes(4 * 2 * 2 * 3); // 4 blocks, 2 tokens, 2 heads, 3 bytes
    for (int i = 0; i < values.capacity(); ++i) {
      values.put(i, (byte) i);
    }
    FloatBuffer scales = Caches.random(4 * 2 * 2, 6); // one per row
    FloatBuffer keys = Caches.random(4 * 2 * ROW, 7);
    FloatBuffer keysBefore = Caches.copy(keys);
    FloatBuffer scalesBefore = Caches.copy(scales);
    try (Context context = Context.create();
        View view = View.builder(2)
            .k(Caches.plane(keys, 2).withBlockStride(2 * ROW * 4))
            .v(Plane.opaque(values, 3, 6, 3).withBlockStride(12))
            .companion(Plane.of(scales, DType.F32, 1, 8, 4).withBlockStride(16))
            .paged(2, table)
            .build()) {
      context.compact(Caches.moves(view, 6, 1, 1, 4, 5));
      int[] kept = {1, 4, 5};
      for (int slot = 0; slot < 3; ++slot) {
        int to = blocks[slot / 2] * 2 + slot % 2;
        int from = blocks[kept[slot] / 2] * 2 + kept[slot] % 2;
        Check.equal((byte) (from * 6), values.get(to * 6));
        Check.equal((byte) (from * 6 + 5), values.get(to * 6 + 5));
        Check.equal(scalesBefore.get(from * 2 + 1), scales.get(to * 2 + 1));
        Check.equal(keysBefore.get(from * ROW + 9), keys.get(to * ROW + 9));
      }
    }
  }

  /** Groups of 4 tokens share scales and minima, the last tokens are not quantized. */
  static void survivorsAreGroupedAnew() {
    ByteBuffer codes = Caches.bytes(8 * 2 * 4); // 8 tokens, 2 heads, 4 elements
    for (int i = 0; i < codes.capacity(); ++i) {
      codes.put(i, (byte) (i * 3));
    }
    FloatBuffer scales = Caches.random(2 * 2 * 4, 6);
    FloatBuffer minima = Caches.random(2 * 2 * 4, 6);
    for (int i = 0; i < 16; ++i) {
      scales.put(i, 1);
      minima.put(i, i);
    }
    FloatBuffer recent = Caches.random(3 * 2 * 4, 7);
    FloatBuffer before = Caches.copy(recent);
    try (Context context = Context.create();
        View view = View.builder(2)
            .k(Plane.of(codes, DType.U8, 4, 8, 4))
            .companion(Plane.of(scales, DType.F32, 4, 32, 16).withRole(Role.KEY_SCALE)
                .withGroupTokens(4))
            .companion(Plane.of(minima, DType.F32, 4, 32, 16).withGroupTokens(4)
                .withRole(Role.KEY_MINIMUM))
            .companion(Plane.of(recent, DType.F32, 4, 32, 16).withRole(Role.KEY_RECENT))
            .firstRecent(8)
            .build()) {
      view.validate(11);
      Check.fails(IllegalArgumentException.class, () -> view.validate(12), "3 rows");
      context.compact(Caches.moves(view, 11, 1, 1, 6, 8, 9, 10));
      for (int i = 0; i < 12; ++i) {
        Check.equal((byte) (i < 8 ? 0 : 255), codes.get(i));
      }
      Check.equal(28f, minima.get(1));
      Check.equal(before.get(23), recent.get(23));
    }
  }

  /** Two codes per byte, and the scales that they are multiplied by. */
  static void codesMoveWithTheirScales() {
    ByteBuffer codes = Caches.bytes(10 * 2 * 2); // 10 tokens, 2 heads, 4 codes
    for (int i = 0; i < codes.capacity(); ++i) {
      codes.put(i, (byte) i);
    }
    FloatBuffer scales = Caches.random(10 * 2, 6);
    FloatBuffer before = Caches.copy(scales);
    Plane keys = Plane.of(codes, DType.U4, 4, 4, 2);
    try (Context context = Context.create();
        View view = View.builder(2)
            .k(keys)
            .companion(Plane.of(scales, DType.F32, 1, 8, 4).withRole(Role.KEY_SCALE))
            .build();
        View misplaced = View.builder(2).k(keys.withRole(Role.KEY_SCALE)).build()) {
      Check.fails(IllegalArgumentException.class,
          () -> context.compact(Caches.moves(view, 11, 1, 1, 7)), "10 rows");
      context.compact(Caches.moves(view, 10, 1, 1, 7));
      for (int i = 0; i < 4; ++i) {
        Check.equal((byte) (4 + i), codes.get(i));
        Check.equal((byte) (28 + i), codes.get(4 + i));
        Check.equal(before.get(i < 2 ? 2 + i : 12 + i), scales.get(i));
      }
      Check.fails(KvEvictException.class,
          () -> context.compact(Caches.moves(misplaced, 10, 1, 1, 7)), "k.role 1");
    }
  }
}
