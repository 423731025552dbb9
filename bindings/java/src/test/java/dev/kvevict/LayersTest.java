package dev.kvevict;

import java.nio.FloatBuffer;
import java.util.Arrays;
import java.util.List;

/** A model whose layers differ: only full caches are evicted, each as by itself. */
final class LayersTest {
  private static final int N = 64;
  private static final String POLICY = "snapkv:budget=16,window=4";

  /** Arguments for layers without a full cache are not read, so they may make no sense. */
  private static final LayerGeometry WINDOW = layer(3, 2, 5, LayerCache.WINDOW);

  private static final LayerGeometry NONE = layer(0, 0, 0, LayerCache.NONE);
  private static final LayerGeometry WIDE = layer(4, 2, 8, LayerCache.FULL);
  private static final LayerGeometry NARROW = layer(3, 1, 16, LayerCache.FULL);
  private static final Geometry MODEL =
      Geometry.of(N, List.of(WINDOW, WIDE, NONE, NARROW, WINDOW));

  private LayersTest() {}

  private static LayerGeometry layer(int qHeads, int kvHeads, int dim, LayerCache cache) {
    return LayerGeometry.builder().queryHeads(qHeads).kvHeads(kvHeads).headDim(dim).cache(cache)
        .build();
  }

  private static Plane rows(FloatBuffer data, int headCount, int dim) {
    return Plane.of(data, DType.F32, dim, headCount * dim * 4, dim * 4);
  }

  /** A layer's queries and cache. */
  private static final class Layer {
    final SignalInputs queries;
    final FloatBuffer k;
    final View view;

    Layer(LayerGeometry shape) {
      int dim = shape.keyHeadDim();
      int heads = shape.kvHeads();
      queries = Caches.queries(
          rows(Caches.random(N * shape.queryHeads() * dim, dim), shape.queryHeads(), dim));
      k = Caches.random(N * heads * dim, 1 + dim);
      view = View.of(heads, rows(k, heads, dim),
          rows(Caches.random(N * heads * dim, 2 + dim), heads, dim));
    }
  }

  static void aPlanTellsWhatEachLayerIs() {
    try (Context context = Context.create();
        Plan plan = context.newPlan(MODEL, Policy.parse(POLICY));
        Plan alike = Caches.plan(context, 2, N, "streaming-llm:budget=16")) {
      Check.equal(new Records.LayerInfo(LayerCache.FULL, 4, 2, 2, 0), plan.layer(1));
      Check.equal(new Records.LayerInfo(LayerCache.FULL, 3, 1, 1, 2), plan.layer(3));
      Check.equal(new Records.LayerInfo(LayerCache.FULL, 4, 2, 1, 1), alike.layer(1));
      for (int layer : new int[] {0, 2, 4}) {
        LayerInfo info = plan.layer(layer);
        Check.equal(MODEL.layer(layer).cache(), info.cache());
        Check.equal(List.of(0, 0), List.of(info.kvHeads(), info.listCount()));
        Capabilities can = plan.capabilities(layer);
        Check.equal(List.of(false, false), List.of(can.canMove(), can.canScore()));
        Check.equal(List.of(Reason.NO_FULL_CACHE, Reason.NO_FULL_CACHE),
            List.of(can.moveReason(), can.scoreReason()));
      }
      Check.fails(KvEvictException.class, () -> plan.layer(5), "layer 5");
      Check.fails(KvEvictException.class, () -> plan.layer(-1), "4294967295");
      Check.equal(new int[] {0, 16, 0, 16, 0}, plan.layerBudgets(N));
      Check.equal(2, plan.selection(1, N).listCount());
      Check.fails(KvEvictException.class, () -> plan.selection(0, N), "layer 0");
      Check.fails(KvEvictException.class,
          () -> plan.score(List.of(ScoreJob.of(2, N, Caches.floats(N))), null), "layer 2");
      Check.fails(KvEvictException.class,
          () -> context.newPlan(Geometry.of(N, List.of()), plan.policy()), "layers is NULL");
    }
  }

  static void onlyFullCachesAreEvicted() {
    Layer wide = new Layer(WIDE);
    Layer narrow = new Layer(NARROW);
    View nothing = Caches.view(Caches.floats(0), Caches.floats(0));
    try (Context context = Context.create();
        Plan plan = context.newPlan(MODEL, Policy.parse(POLICY));
        Sequence sequence = plan.newSequence()) {
      sequence.beginObserving();
      sequence.observe(Arrays.asList(narrow.queries, wide.queries, null, narrow.queries, null),
          N, 0);
      sequence.append(N);
      EvictReport report = sequence.evict(
          Arrays.asList(nothing, wide.view, null, narrow.view, null),
          plan.workspace(Operation.EVICT).allocate());
      Check.equal(List.of(2L * N, 32L), List.of(report.tokensBefore(), report.tokensAfter()));
      Check.equal(List.of(new Records.ListReport(1, N, 16), new Records.ListReport(1, N, 16),
          new Records.ListReport(3, N, 16)), sequence.listReports());
      Check.equal(List.of(16, 16), List.of(1, 3).stream().map(sequence::storedLength).toList());
      for (int layer : List.of(0, 2, 4)) {
        Check.fails(KvEvictException.class, () -> sequence.storedLength(layer),
            "layer " + layer + " has no full cache");
      }
      Check.equal(0L, sequence.memoryOf(0).lengths());
      Check.equal(List.of(0, 2, 1), List.of(sequence.memoryOf(2).listCount(),
          sequence.memoryOf(1).listCount(), sequence.memoryOf(3).listCount()));
      asByItself(context, sequence, 1, WIDE, wide);
      asByItself(context, sequence, 3, NARROW, narrow);
      Check.fails(IllegalArgumentException.class,
          () -> sequence.evict(List.of(wide.view), null), "1 views for 5 layers");
      Check.fails(NullPointerException.class,
          () -> sequence.evict(Arrays.asList(null, null, null, null, null), null));
    }
  }

  /** What a model of this layer alone keeps. */
  private static void asByItself(
      Context context, Sequence sequence, int layer, LayerGeometry shape, Layer evicted) {
    Layer again = new Layer(shape);
    try (Plan plan = context.newPlan(Geometry.of(N, List.of(shape)), Policy.parse(POLICY));
        Sequence alone = plan.newSequence()) {
      alone.beginObserving();
      alone.observe(0, again.queries, N, 0, 0);
      alone.append(N);
      alone.evict(List.of(again.view), plan.workspace(Operation.EVICT).allocate());
      for (int head = 0; head < shape.kvHeads(); ++head) {
        Check.equal(alone.keepPositions(0, head), sequence.keepPositions(layer, head));
      }
      Check.equal(again.k, evicted.k);
    }
  }

  static void capsAndSinksAreOfTheGeometry() {
    Policy policy = Policy.parse("snapkv:budget=16,window=4");
    Geometry capped = Geometry.builder().layers(1).queryHeads(4).kvHeads(2).headDim(8)
        .maxTokens(N).logitSoftcap(30).build();
    Check.equal(30f, capped.layer(0).logitSoftcap());
    try (Context context = Context.create();
        Plan plan = context.newPlan(capped.withSinkLogits(0, 1, 2, Float.NEGATIVE_INFINITY),
            policy)) {
      Check.that(!plan.policy().equals(Policy.parse("none")), "a plan");
      Check.fails(KvEvictException.class,
          () -> context.newPlan(capped.withSinkLogits(0, 1, 2), policy), "sink_logits_len 3");
    }
  }

  static void headBudgetsAreThoseOfFullCaches() {
    Layer wide = new Layer(WIDE);
    Layer narrow = new Layer(NARROW);
    try (Context context = Context.create();
        Plan plan = context.newPlan(MODEL, Policy.parse("knorm:sink=0,budget=16"),
            PlanOptions.NONE.withHeadBudgets(5, 9, 70));
        Sequence sequence = plan.newSequence()) {
      sequence.append(N);
      sequence.evict(Arrays.asList(null, wide.view, null, narrow.view, null),
          plan.workspace(Operation.EVICT).allocate());
      Check.equal(List.of(5, 9, N), List.of(sequence.storedLength(1, 0),
          sequence.storedLength(1, 1), sequence.storedLength(3)));
      Check.fails(KvEvictException.class,
          () -> context.newPlan(MODEL, plan.policy(), PlanOptions.NONE.withHeadBudgets(5, 9)),
          "head_budgets_len 2");
    }
  }
}
