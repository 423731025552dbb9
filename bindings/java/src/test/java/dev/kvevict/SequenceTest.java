package dev.kvevict;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/** A request from prefill to rollback. */
final class SequenceTest {
  private static final int N = 64;
  private static final int ROW = Caches.KVH * Caches.D;

  private SequenceTest() {}

  static void addsUpAttention() {
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, N, "h2o:budget=3,recent=1");
        Sequence sequence = plan.newSequence();
        View view = Caches.view(Caches.random(N * ROW, 1), Caches.random(N * ROW, 2))) {
      sequence.beginObserving();
      sequence.observe(0, sums(5, 0, 3, 0, 0, 9, 0, 1), 4, Sequence.POSITION_NEXT, 0);
      sequence.append(5);
      Check.fails(IllegalArgumentException.class,
          () -> sequence.observe(0, sums(0, 0, 0, 0, 0, 0, 0, 0), 1, 4, 0), "attentionSums");
      sequence.observe(0, sums(0, 1, 0, 0, 0, 0, 0, 0, 8, 0), 1, 4, 0);
      Check.fails(KvEvictException.class,
          () -> sequence.observe(0, sums(0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 1, 4, 0), "do not follow");
      sequence.evict(List.of(view), plan.workspace(Operation.EVICT).allocate());
      Check.equal(new int[] {0, 2, 4}, sequence.keepPositions(0, 0));
      Check.equal(new int[] {1, 3, 4}, sequence.keepPositions(0, 1));
      SequenceMemory memory = sequence.memoryOf(0);
      Check.that(memory.sums() != 0 && memory.sumHeads() == Caches.KVH, memory.toString());
      Check.equal((long) N, memory.sumStride());
    }
  }

  private static SignalInputs sums(float... each) {
    FloatBuffer data = Caches.floats(each.length);
    data.duplicate().put(each);
    return SignalInputs.NONE.withQueryRows(77).withAttentionSums(
        Caches.scores(data, each.length / Caches.KVH)).withSumHeads(Caches.KVH);
  }

  static void keepsSinksAndRecents() {
    FloatBuffer k = Caches.random(N * ROW, 1);
    FloatBuffer before = Caches.copy(k);
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, N, "streaming-llm:budget=8,sink=2");
        Sequence sequence = plan.newSequence();
        View view = Caches.view(k, Caches.random(N * ROW, 2))) {
      sequence.append(N);
      EvictReport report =
          sequence.evict(List.of(view), plan.workspace(Operation.EVICT).allocate());
      long row = 2 * ROW * 4;
      Check.equal(new Records.EvictReport(
          true, N * row, 8 * row, N, 8, 0, Reason.NONE), report);
      Check.equal(report, sequence.report());
      Check.equal(List.of(new Records.ListReport(0, N, 8)), sequence.listReports());
      int[] kept = {0, 1, 58, 59, 60, 61, 62, 63};
      Check.equal(kept, sequence.keepPositions(0, 0));
      Check.equal(8, sequence.storedLength(0));
      Check.equal(N, sequence.logicalLength());
      Check.equal(58, sequence.positionOfSlot(0, 1, 2));
      Check.equal(2, sequence.slotOfPosition(0, 1, 58));
      Check.equal(-1, sequence.slotOfPosition(0, 1, 57));
      for (int slot = 0; slot < 8; ++slot) {
        Check.equal(before.get(kept[slot] * ROW + 5), k.get(slot * ROW + 5));
      }
      IntBuffer buffer = Caches.bytes(4 * 10).asIntBuffer().position(1);
      Check.equal(8, sequence.keepPositions(0, 0, buffer));
      Check.equal(58, buffer.get(1 + 2));
      SequenceMemory memory = sequence.memoryOf(0);
      Check.that(memory.lengths() != 0 && memory.listCount() >= 1, memory.toString());
      sequence.reset();
      Check.equal(0, sequence.logicalLength());
      Check.equal(new Records.EvictReport(false, 0, 0, 0, 0, 0, Reason.NONE), sequence.report());
      Check.equal(0, sequence.listReports().get(0).tokensBefore());
    }
  }

  /** A fork, what was saved, and one that starts from positions go on from where a sequence is. */
  static void copiesGoOnFromWhereItIs() {
    FloatBuffer q = Caches.random(N * Caches.QH * Caches.D, 3);
    try (Context context = Context.create();
        Plan plan =
            Caches.plan(context, 1, N, "snapkv:budget=16,window=4,sink=4,scope=head");
        Sequence sequence = plan.newSequence();
        View view = Caches.view(Caches.random(N * ROW, 1), Caches.random(N * ROW, 2))) {
      sequence.beginObserving();
      sequence.observe(0, Caches.plane(q, Caches.QH), N, 0);
      sequence.append(N);
      try (Sequence observing = sequence.fork();
          Sequence lent = sequence.fork(plan.workspace(Operation.OBSERVE).allocate())) {
        for (Sequence fork : List.of(observing, lent)) {
          Check.fails(KvEvictException.class, () -> fork.beginObserving(), "Sequence.endObserving() first");
        }
      }
      sequence.evict(List.of(view), plan.workspace(Operation.EVICT).allocate());
      int prefix = sequence.exactPrefix();
      Check.that(prefix >= 4 && prefix <= 16, "prefix " + prefix);
      sequence.append(5);
      int[][] lists = {sequence.keepPositions(0, 0), sequence.keepPositions(0, 1)};
      byte[] saved = sequence.save();
      try (Sequence fork = sequence.fork();
          Sequence loaded = plan.newSequence();
          Sequence started = plan.newSequence()) {
        loaded.load(saved);
        started.start(List.<int[][]>of(lists), N + 5);
        for (Sequence copy : List.of(fork, loaded, started)) {
          Check.equal(N + 5, copy.logicalLength());
          Check.equal(lists[0], copy.keepPositions(0, 0));
          Check.equal(lists[1], copy.keepPositions(0, 1));
          copy.trimTo(N);
          Check.fails(KvEvictException.class, () -> copy.trimTo(prefix + 1), "up to");
          copy.trimTo(prefix);
          Check.equal(prefix, copy.exactPrefix());
        }
        saved[40] ^= 1;
        Check.fails(KvEvictException.class, () -> loaded.load(saved), "CRC-32");
        Check.fails(KvEvictException.class, () -> loaded.load(new byte[0]), "data_len 0");
        Check.fails(KvEvictException.class, () -> started.start(9), "reset");
        started.reset();
        Check.fails(KvEvictException.class,
            () -> started.start(Arrays.asList(new int[][][] {null}), 9), "n_lists 0");
        started.start(9);
        Check.equal(9, started.storedLength(0));
      }
    }
  }

  /** A view without V, where the geometry has V, is refused, and nothing moves. */
  static void missingValuesAreRefused() {
    FloatBuffer k = Caches.random(N * ROW, 1);
    FloatBuffer v = Caches.random(N * ROW, 2);
    FloatBuffer alone = Caches.random(N * ROW, 3);
    List<FloatBuffer> before = List.of(Caches.copy(k), Caches.copy(v), Caches.copy(alone));
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 2, N, "streaming-llm:budget=8,sink=2");
        Sequence sequence = plan.newSequence();
        View whole = Caches.view(k, v);
        View keysAlone =
            View.builder(Caches.KVH).k(Caches.plane(alone, Caches.KVH)).build()) {
      sequence.append(N);
      ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
      KvEvictException e = Check.fails(KvEvictException.class,
          () -> sequence.evict(
              List.of(whole, keysAlone), workspace),
          "views[1]: v.data is 0");
      Check.equal(Status.INVALID_ARGUMENT, e.status());
      Check.fails(NullPointerException.class,
          () -> sequence.evict(Arrays.asList(whole, null), workspace), "views[1] is null");
      Check.fails(NullPointerException.class,
          () -> sequence.undoBytes(Arrays.asList(null, whole)), "views[0] is null");
      EvictOptions elsewhere = EvictOptions.NONE.withDestinations(Arrays.asList(whole, null));
      Check.fails(NullPointerException.class,
          () -> sequence.evict(List.of(whole, whole), elsewhere, workspace),
          "destinations[1] is null");
      for (int layer = 0; layer < 2; ++layer) {
        Check.equal(N, sequence.storedLength(layer));
      }
      Check.equal(before, List.of(k, v, alone));
    }
  }

  /** The same tokens stay for chunks with a rollback as for one call. */
  static void observesInAnyChunksAndRollsBack() {
    FloatBuffer q = Caches.random(N * Caches.QH * Caches.D, 3);
    Plane queries = Caches.plane(q, Caches.QH);
    int rowBytes = Caches.QH * Caches.D * 4;
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 2, N, "snapkv:budget=16,window=4,pool=none")) {
      int[][] kept = new int[2][];
      for (int way = 0; way < 2; ++way) {
        try (Sequence sequence = plan.newSequence()) {
          sequence.beginObserving();
          View[] views = new View[2];
          for (int layer = 0; layer < 2; ++layer) {
            views[layer] = Caches.view(
                Caches.random(N * ROW, 10 + layer), Caches.random(N * ROW, 20 + layer));
            if (way == 0) {
              sequence.observe(layer, queries, N, 0);
            } else {
              sequence.observe(layer, queries, 40, 0);
              sequence.observe(layer, queries.from(7L * rowBytes), 30, 40); // a wrong branch
              for (int t = 40; t < N; ++t) { // and back
                sequence.observe(layer, queries.from((long) t * rowBytes), 1, t);
              }
            }
          }
          sequence.append(N);
          sequence.evict(List.of(views), plan.workspace(Operation.EVICT).allocate());
          kept[way] = sequence.keepPositions(1, 1);
          Check.equal(16, kept[way].length);
        }
      }
      Check.equal(kept[0], kept[1]);
    }
  }

  /** Keeps what single observations keep; a refused call changes nothing. */
  static void observesAllLayersTogether() {
    Plane[] queries = {
      Caches.plane(Caches.random(N * Caches.QH * Caches.D, 3), Caches.QH),
      Caches.plane(Caches.random(N * Caches.QH * Caches.D, 4), Caches.QH)
    };
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 2, N, "snapkv:budget=16,window=4,pool=none")) {
      int[][][] kept = new int[2][2][];
      for (int way = 0; way < 2; ++way) {
        try (Sequence sequence = plan.newSequence()) {
          sequence.beginObserving();
          View[] views = new View[2];
          for (int layer = 0; layer < 2; ++layer) {
            views[layer] = Caches.view(
                Caches.random(N * ROW, 10 + layer), Caches.random(N * ROW, 20 + layer));
            if (way == 0) {
              sequence.observe(layer, queries[layer], N, 0);
            }
          }
          if (way == 1) {
            sequence.observe(all(queries), N, Sequence.POSITION_NEXT);
            List<SignalInputs> swapped =
                all(queries[1], Caches.plane(Caches.floats(0), Caches.QH));
            Check.fails(IllegalArgumentException.class,
                () -> sequence.observe(swapped, N, 0), "queries of layer 1");
            Plane narrow = Plane.of(Caches.floats(N * Caches.QH * Caches.D), DType.F32,
                Caches.D - 1, Caches.QH * Caches.D * 4, Caches.D * 4);
            Check.fails(KvEvictException.class,
                () -> sequence.observe(all(queries[1], narrow), N, 0), "layer 1");
            Check.fails(IllegalArgumentException.class,
                () -> sequence.observe(all(queries[1]), N, 0), "1 inputs for 2 layers");
            sequence.observe(Arrays.asList(null, null), N, 0);
          }
          sequence.append(N);
          sequence.evict(List.of(views), plan.workspace(Operation.EVICT).allocate());
          for (int layer = 0; layer < 2; ++layer) {
            kept[way][layer] = sequence.keepPositions(layer, 1);
          }
        }
      }
      for (int layer = 0; layer < 2; ++layer) {
        Check.equal(kept[0][layer], kept[1][layer]);
      }
    }
  }

  private static List<SignalInputs> all(Plane... queries) {
    return Stream.of(queries).map(Caches::queries).toList();
  }

  /** The window's rows keep the same tokens, whether they were observed or come with the call. */
  static void queriesMayComeWithTheEviction() {
    FloatBuffer q = Caches.random(N * Caches.QH * Caches.D, 3);
    Plane queries = Caches.plane(q, Caches.QH);
    long rowBytes = Caches.QH * Caches.D * 4;
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, N, "snapkv:budget=16,window=4,pool=none")) {
      ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
      int[][] kept = new int[3][];
      for (int way = 0; way < 3; ++way) {
        try (Sequence sequence = plan.newSequence();
            View view = Caches.view(Caches.random(N * ROW, 1), Caches.random(N * ROW, 2))) {
          sequence.append(N);
          EvictOptions options = EvictOptions.NONE;
          if (way == 0) {
            sequence.beginObserving();
            sequence.observe(0, queries, N, 0);
          } else { // another window keeps other tokens
            long first = way == 1 ? N - 4 : 0;
            options = options.withInputs(all(queries.from(first * rowBytes)));
          }
          sequence.evict(List.of(view), options, workspace);
          kept[way] = sequence.keepPositions(0, 0);
        }
      }
      Check.equal(kept[0], kept[1]);
      Check.that(!Arrays.equals(kept[0], kept[2]), "queries do not matter");
    }
  }

  static void nextPositionIsTheLogicalLength() {
    Plane queries = Caches.plane(Caches.random(N * Caches.QH * Caches.D, 3), Caches.QH);
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, N, "snapkv:budget=16,window=4,pool=none");
        Sequence sequence = plan.newSequence();
        View view = Caches.view(Caches.random(N * ROW, 1), Caches.random(N * ROW, 2))) {
      sequence.beginObserving();
      for (int i = 0; i < 2; ++i) {
        sequence.observe(0, queries, N / 2, Sequence.POSITION_NEXT);
        sequence.append(N / 2);
      }
      sequence.evict(List.of(view), plan.workspace(Operation.EVICT).allocate());
      Check.equal(16, sequence.storedLength(0));
      Check.fails(KvEvictException.class, () -> sequence.observe(0, queries, 1, -2), "position");
    }
  }

  static void queryMemoryIsTheContextsOrLent() {
    Plane queries = Caches.plane(Caches.random(N * Caches.QH * Caches.D, 3), Caches.QH);
    FloatBuffer k = Caches.random(N * ROW, 1);
    FloatBuffer v = Caches.random(N * ROW, 2);
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, N, "snapkv:budget=16,window=4,pool=none");
        Sequence sequence = plan.newSequence()) {
      Check.fails(KvEvictException.class, () -> sequence.observe(0, queries, N, 0),
          "Sequence.beginObserving()");
      ByteBuffer memory = plan.workspace(Operation.OBSERVE).allocate();
      Check.fails(KvEvictException.class,
          () -> sequence.beginObserving(memory.slice(64, memory.capacity() - 64)), "memory_bytes");
      Check.fails(IllegalArgumentException.class,
          () -> sequence.beginObserving(ByteBuffer.allocate(memory.capacity())), "direct");
      int[][] kept = new int[2][];
      for (int way = 0; way < 2; ++way) {
        sequence.reset();
        if (way == 0) {
          sequence.beginObserving();
        } else {
          sequence.beginObserving(memory);
        }
        Check.fails(KvEvictException.class, sequence::beginObserving,
            "Sequence.endObserving()");
        sequence.observe(0, queries, N, 0);
        sequence.append(N);
        try (View view = Caches.view(Caches.copy(k), Caches.copy(v))) {
          sequence.evict(List.of(view), plan.workspace(Operation.EVICT).allocate());
        }
        sequence.endObserving();
        kept[way] = sequence.keepPositions(0, 1);
      }
      Check.equal(kept[0], kept[1]);
    }
  }

  static void protectedPositionsAndCustomScores() {
    float[] scores = new float[2 * N];
    for (int i = 0; i < scores.length; ++i) {
      scores[i] = i % N; // the later, the better
    }
    FloatBuffer direct = Caches.floats(scores.length).put(0, scores);
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, N, "custom:budget=6,sink=1,recent=1");
        Sequence sequence = plan.newSequence();
        View view = Caches.view(Caches.random(N * ROW, 1), Caches.random(N * ROW, 2))) {
      ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
      sequence.append(N);
      Check.fails(KvEvictException.class, () -> sequence.evict(List.of(view), workspace),
          "scores");
      EvictOptions options = EvictOptions.NONE.withProtected(9, 20)
          .withInputs(List.of(SignalInputs.NONE.withScores(Caches.scores(direct, N))));
      sequence.evict(List.of(view), options, workspace);
      Check.equal(new int[] {0, 9, 20, 61, 62, 63}, sequence.keepPositions(0, 0));
    }
  }

  static void undoTakesAnEvictionBack() {
    FloatBuffer keys = Caches.random(N * ROW, 1);
    FloatBuffer values = Caches.random(N * ROW, 2);
    float[] before = new float[2 * N * ROW];
    keys.get(0, before, 0, N * ROW);
    values.get(0, before, N * ROW, N * ROW);
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, N, "knorm:budget=16");
        Sequence sequence = plan.newSequence(); View view = Caches.view(keys, values)) {
      ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
      List<View> views = List.of(view);
      sequence.append(N);
      Check.fails(KvEvictException.class, () -> sequence.undo(views, workspace),
          "nothing to undo");
      long bytes = sequence.undoBytes(views);
      ByteBuffer undo =
          ByteBuffer.allocateDirect((int) bytes + 64).alignedSlice(64).limit((int) bytes);
      sequence.evict(views, EvictOptions.NONE.withUndo(undo), workspace);
      Check.equal(16, sequence.storedLength(0));
      sequence.undo(views, undo);
      Check.equal(N, sequence.storedLength(0));
      float[] after = new float[2 * N * ROW];
      keys.get(0, after, 0, N * ROW);
      values.get(0, after, N * ROW, N * ROW);
      Check.equal(before, after);
      Check.fails(KvEvictException.class, () -> sequence.undo(views, undo), "nothing to undo");
      Check.fails(IllegalArgumentException.class, () -> sequence.undo(List.of(), undo),
          "0 views for 1 layers");
    }
  }

  /** Rows that stay are copied, and the view keeps all. */
  static void evictsToDestinations() {
    FloatBuffer keys = Caches.random(N * ROW, 1);
    FloatBuffer values = Caches.random(N * ROW, 2);
    FloatBuffer before = Caches.copy(keys);
    FloatBuffer thereKeys = Caches.floats(16 * ROW);
    FloatBuffer thereValues = Caches.floats(16 * ROW);
    try (Context context = Context.create();
        Plan without = Caches.plan(context, 1, N, "knorm:budget=16");
        Plan plan = context.newPlan(without.geometry(), without.policy(),
            PlanOptions.NONE.withDestinations(true));
        Sequence sequence = plan.newSequence(); Sequence other = without.newSequence();
        View view = Caches.view(keys, values); View there = Caches.view(thereKeys, thereValues);
        View small = Caches.view(Caches.floats(ROW), thereValues)) {
      ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
      List<View> views = List.of(view);
      sequence.append(N);
      other.append(N);
      Check.equal(new int[] {16}, sequence.keptSlots(views));
      EvictOptions options = EvictOptions.NONE.withDestinations(List.of(there));
      Check.fails(KvEvictException.class, () -> other.evict(views, options, workspace),
          "has_destinations");
      Check.fails(IllegalArgumentException.class, () -> sequence.evict(
          views, options.withDestinations(List.of(small)), workspace), "16");
      Check.fails(IllegalArgumentException.class, () -> sequence.evict(
          views, options.withDestinations(List.of(there, there)), workspace),
          "2 destinations for 1 layers");
      EvictReport report = sequence.evict(views, options, workspace);
      Check.equal(report.bytesBefore() / (N / 16), report.bytesAfter());
      Check.equal(before, keys);
      int[] positions = sequence.keepPositions(0, 0);
      Check.equal(16, positions.length);
      for (int slot = 0; slot < positions.length; ++slot) {
        Check.equal(keys.get(positions[slot] * ROW), thereKeys.get(slot * ROW));
        Check.equal(values.get(positions[slot] * ROW), thereValues.get(slot * ROW));
      }
    }
  }

  /** Positions of a higher rank go last, of a lower one first, and the report tells the mass. */
  static void rangesAndTheMassThatStays() {
    float[] scores = new float[2 * N];
    for (int i = 0; i < scores.length; ++i) {
      scores[i] = i % N;
    }
    FloatBuffer direct = Caches.floats(scores.length).put(0, scores);
    try (Context context = Context.create();
        Plan small = Caches.plan(context, 1, N, "custom:budget=6,sink=1");
        Plan plan = context.newPlan(small.geometry(), small.policy(),
            PlanOptions.NONE.withReportMass(true));
        Sequence sequence = plan.newSequence();
        View view = Caches.view(Caches.random(N * ROW, 1), Caches.random(N * ROW, 2))) {
      ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
      sequence.append(N);
      EvictOptions options = EvictOptions.NONE
          .withRanges(TokenRange.of(10, 12, 1), TokenRange.of(N - 2, Integer.MAX_VALUE, -1))
          .withInputs(List.of(SignalInputs.NONE.withScores(Caches.scores(direct, N))));
      Check.fails(KvEvictException.class, () -> sequence.evict(List.of(view),
          options.withRanges(TokenRange.of(3, 5, 1), TokenRange.of(4, 6, 1)), workspace),
          "ranges[1]: first 4 < 5");
      Check.fails(IllegalArgumentException.class, () -> TokenRange.of(-1, 5, 1), "first");
      sequence.evict(List.of(view), options, workspace);
      Check.equal(new int[] {0, 10, 11, N - 5, N - 4, N - 3}, sequence.keepPositions(0, 0));
      float all = N * (N - 1) / 2f;
      ListReport list = sequence.listReports().get(0);
      Check.equal((10 + 11 + 3 * (N - 4)) / all, list.massKept());
      Check.equal((N - 1) / all, list.largestMassEvicted());
    }
  }

  /** A plane of scores for each layer, with strides of its own. */
  static void layersHaveScoresOfTheirOwn() {
    FloatBuffer[] scores = {Caches.random(2 * N, 1), Caches.random(3 * N, 2)};
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 2, N, "custom:sink=0,budget=6");
        Sequence sequence = plan.newSequence()) {
      List<View> views = List.of(Caches.view(Caches.floats(N * ROW), Caches.floats(N * ROW)),
          Caches.view(Caches.floats(N * ROW), Caches.floats(N * ROW)));
      sequence.append(N);
      sequence.evict(views, EvictOptions.NONE.withInputs(
          List.of(SignalInputs.NONE.withScores(Caches.scores(scores[0], N)),
              SignalInputs.NONE.withScores(Caches.scores(scores[1], 2 * N)))),
          plan.workspace(Operation.EVICT).allocate());
      for (int i = 0; i < 4; ++i) {
        FloatBuffer row = scores[i / 2].slice(i % 2 * (i / 2 + 1) * N, N);
        int[] best = IntStream.range(0, N).boxed()
            .sorted((a, b) -> Float.compare(row.get(b), row.get(a))).limit(6).sorted()
            .mapToInt(Integer::intValue).toArray();
        Check.equal(best, sequence.keepPositions(i / 2, i % 2));
      }
    }
  }

  /** Blocks that a head has no more may be gone from its table, though another head is longer. */
  static void freedBlocksMayLeaveTheTable() {
    IntBuffer tables = Caches.ints(0, 1, 2, 3);
    int block = 8 * Caches.D;
    Plane k = Plane.of(Caches.random(4 * block, 1), DType.F32, Caches.D, Caches.D * 4, 0)
        .withBlockStride(4 * block);
    Plane v = Plane.of(Caches.random(4 * block, 2), DType.F32, Caches.D, Caches.D * 4, 0)
        .withBlockStride(4 * block);
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, 32, "knorm:sink=0,budget=8", 4, 12);
        Sequence sequence = plan.newSequence();
        View view = View.builder(2).k(k).v(v).paged(8, tables).blockTableHeadStride(2).build()) {
      ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
      sequence.append(16);
      Check.equal(1L, sequence.evict(List.of(view), workspace).blocksFreed());
      tables.put(1, 99);
      sequence.append(2);
      sequence.evict(List.of(view), workspace);
      sequence.append(5); // head 0 is in its second block again
      Check.fails(IllegalArgumentException.class, () -> sequence.evict(List.of(view), workspace),
          "the block table names 99");
    }
  }

  /** Heads of a layer hold different numbers of tokens, through two evictions. */
  static void headsMayDiffer() {
    FloatBuffer q = Caches.random(N * Caches.QH * Caches.D, 3);
    Plane queries = Caches.plane(q, Caches.QH);
    long rowBytes = Caches.QH * Caches.D * 4;
    try (Context context = Context.create();
        Plan plan = Caches.plan(
            context, 2, N, "snapkv:budget=24,window=4,sink=0", 4, 9, 12, 40);
        Sequence sequence = plan.newSequence()) {
      FloatBuffer[] k = {Caches.floats(N * ROW), Caches.floats(N * ROW)};
      List<View> views =
          List.of(Caches.view(k[0], Caches.floats(N * ROW)),
              Caches.view(k[1], Caches.floats(N * ROW)));
      ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
      sequence.beginObserving();
      store(sequence, k, 0, 30);
      for (int layer = 0; layer < 2; ++layer) {
        sequence.observe(layer, queries, 30, 0);
      }
      sequence.append(30);
      EvictReport report = sequence.evict(views, workspace);
      Check.equal(List.of(
          new Records.ListReport(0, 30, 4), new Records.ListReport(0, 30, 9),
          new Records.ListReport(1, 30, 12), new Records.ListReport(1, 30, 30)),
          sequence.listReports());
      Check.equal(List.of(60L, 9L + 30), List.of(report.tokensBefore(), report.tokensAfter()));
      holds(sequence, k, 4, 9, 12, 30);

      store(sequence, k, 30, 6);
      for (int layer = 0; layer < 2; ++layer) {
        sequence.observe(layer, queries.from(30 * rowBytes), 6, 30);
      }
      sequence.append(6);
      holds(sequence, k, 10, 15, 18, 36);
      sequence.trimTo(34);
      holds(sequence, k, 8, 13, 16, 34);
      for (int layer = 0; layer < 2; ++layer) {
        sequence.observe(layer, queries.from(30 * rowBytes), 4, 30);
      }
      sequence.evict(views, workspace);
      Check.equal(List.of(
          new Records.ListReport(0, 8, 4), new Records.ListReport(0, 13, 9),
          new Records.ListReport(1, 16, 12), new Records.ListReport(1, 34, 34)),
          sequence.listReports());
      holds(sequence, k, 4, 9, 12, 34);
      Check.equal(34, sequence.logicalLength());
      Check.that(sequence.memoryOf(0).listedCounts() != 0, "listed counts");
      Check.equal(2, sequence.memoryOf(0).listCount());

      Check.fails(KvEvictException.class, () -> plan.selection(0, 34), "budgets of their own");
      Check.fails(KvEvictException.class, () -> sequence.storedLength(0, 2), "kv_head 2");
      Check.fails(KvEvictException.class,
          () -> context.newPlan(plan.geometry(), plan.policy(),
              PlanOptions.NONE.withHeadBudgets(1, 2, 3)),
          "head_budgets_len 3");
      Check.fails(IllegalArgumentException.class,
          () -> PlanOptions.NONE.withHeadBudgets(24, 24, 24, -1), "headBudgets");
    }
  }

  static void blocksGoByTable() {
    FloatBuffer k = Caches.random(16 * Caches.KVH * Caches.D, 5);
    FloatBuffer v = Caches.random(16 * Caches.KVH * Caches.D, 6);
    FloatBuffer before = Caches.copy(k);
    int blockBytes = 4 * Caches.KVH * Caches.D * 4;
    IntBuffer table = Caches.ints(3, 1, 0, 2);
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, N, "streaming-llm:budget=10,sink=4,select_block=4");
        Sequence sequence = plan.newSequence();
        View view = View.builder(Caches.KVH).k(Caches.plane(k, Caches.KVH).withBlockStride(blockBytes))
            .v(Caches.plane(v, Caches.KVH).withBlockStride(blockBytes)).paged(4, table).build();
        View fixed = View.builder(Caches.KVH).k(Caches.plane(k, Caches.KVH).withBlockStride(blockBytes))
            .v(Caches.plane(v, Caches.KVH).withBlockStride(blockBytes))
            .paged(4, table.asReadOnlyBuffer()).build()) {
      Capabilities can = plan.capabilities(0);
      Check.equal(List.of(4, false, false),
          List.of(can.tableBlock(), can.needsHeadTables(), can.needsLayerTables()));
      sequence.append(14);
      ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
      EvictOptions byTable = EvictOptions.NONE.withByTable(true);
      Check.fails(IllegalArgumentException.class,
          () -> sequence.evict(List.of(fixed), byTable, workspace), "read-only");
      EvictReport report = sequence.evict(List.of(view), byTable, workspace);
      Check.equal(1L, report.blocksFreed());
      Check.equal(Caches.ints(3, 0, 2, 1), table);
      Check.equal(before, k);
      Check.equal(10, sequence.storedLength(0));
    }
  }

  /** Writes to every head's next slots what says which tokens they hold. */
  private static void store(Sequence sequence, FloatBuffer[] k, int token, int n) {
    for (int i = 0; i < 2 * Caches.KVH; ++i) {
      int stored = sequence.storedLength(i / 2, i % 2);
      for (int t = 0; t < n; ++t) {
        k[i / 2].put(((stored + t) * Caches.KVH + i % 2) * Caches.D, token + t + i / 8f);
      }
    }
  }

  private static void holds(Sequence sequence, FloatBuffer[] k, int... lengths) {
    for (int i = 0; i < lengths.length; ++i) {
      Check.equal(lengths[i], sequence.storedLength(i / 2, i % 2));
      int[] positions = sequence.keepPositions(i / 2, i % 2);
      Check.equal(lengths[i], positions.length);
      for (int slot = 0; slot < positions.length; ++slot) {
        Check.equal(positions[slot] + i / 8f,
            k[i / 2].get((slot * Caches.KVH + i % 2) * Caches.D));
      }
    }
  }

  static void budgetsAndCapabilities() {
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 2, N, "snapkv:budget=16,window=4")) {
      Check.equal(new int[] {16, 16}, plan.layerBudgets(N));
      Check.equal(true, plan.capabilities(1).canScore());
      Check.equal(Reason.NO_ROPE, plan.capabilities(1).rotateReason());
      Check.fails(KvEvictException.class, () -> plan.capabilities(2), "layer 2");
      Check.equal(2, plan.geometry().layerCount());
      Check.equal(Policy.parse("snapkv:budget=16,window=4"), plan.policy());
    }
  }
}
