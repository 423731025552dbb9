package dev.kvevict;

import static dev.kvevict.Caches.D;
import static dev.kvevict.Caches.KVH;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/** Calls for many sequences, and forks under another plan. */
final class BatchTest {
  private static final int N = 64;
  private static final int ROW = KVH * D;
  private static final int[] LENGTHS = {30, 12, 47};

  private BatchTest() {}

  /** Sequences of a plan, with the same caches and queries in each of them. */
  private static final class Requests implements AutoCloseable {
    final List<Sequence> sequences = new ArrayList<>();
    final List<View> views = new ArrayList<>();
    final List<Plane> queries = new ArrayList<>();

    Requests(Plan plan) {
      for (int i = 0; i < LENGTHS.length; ++i) {
        sequences.add(plan.newSequence());
        sequences.get(i).beginObserving();
        views.add(Caches.view(Caches.random(N * ROW, 10 * i), Caches.random(N * ROW, 10 * i + 1)));
        queries.add(Caches.plane(Caches.random(N * Caches.QH * D, 10 * i + 2), Caches.QH));
      }
    }

    @Override
    public void close() {
      sequences.forEach(Sequence::close);
      views.forEach(View::close);
    }
  }

  static void equalsSingleCalls() {
    try (Context context = Context.create();
        Plan plan =
            Caches.plan(context, 1, N, "snapkv:budget=16,window=4,sink=4,scope=head");
        Requests one = new Requests(plan);
        Requests all = new Requests(plan)) {
      ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
      EvictOptions options = EvictOptions.NONE.withProtected(7);
      List<EvictReport> singles = new ArrayList<>();
      List<Batch.Tokens> tokens = new ArrayList<>();
      List<Batch.Length> trims = new ArrayList<>();
      List<Batch.Observations> shown = new ArrayList<>();
      List<Batch.Eviction> evictions = new ArrayList<>();
      for (int i = 0; i < LENGTHS.length; ++i) {
        Sequence sequence = one.sequences.get(i);
        sequence.observe(0, one.queries.get(i), LENGTHS[i], 0);
        sequence.append(LENGTHS[i]);
        singles.add(sequence.evict(List.of(one.views.get(i)), options, workspace));
        sequence = all.sequences.get(i);
        tokens.add(Batch.Tokens.of(sequence, LENGTHS[i] + 3));
        trims.add(Batch.Length.of(sequence, LENGTHS[i]));
        shown.add(Batch.Observations.of(
            sequence, List.of(Caches.queries(all.queries.get(i))), LENGTHS[i], 0));
        evictions.add(
            Batch.Eviction.of(sequence, List.of(all.views.get(i))).withOptions(options));
      }
      Batch.append(tokens, 0);
      Batch.trimTo(trims, 0);
      Check.equal(47, all.sequences.get(2).logicalLength());
      Batch.observe(shown, 0);
      ByteBuffer small = Batch.workspace(all.sequences).allocate();
      Check.equal(singles, Batch.evict(evictions, small));
      for (int i = 0; i < LENGTHS.length; ++i) {
        for (int head = 0; head < KVH; ++head) {
          Check.equal(one.sequences.get(i).keepPositions(0, head),
              all.sequences.get(i).keepPositions(0, head));
        }
      }
    }
  }

  /** An item that cannot be leaves all as they were, and the message says which one. */
  static void isCheckedFirst() {
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, N, "knorm:budget=8");
        Requests r = new Requests(plan)) {
      Sequence a = r.sequences.get(0);
      Sequence b = r.sequences.get(1);
      Batch.append(List.of(Batch.Tokens.of(a, 30), Batch.Tokens.of(b, 12)), 0);
      ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
      List<View> views = List.of(r.views.get(0));
      Batch.Eviction good = Batch.Eviction.of(a, views);
      Batch.Eviction gone = Batch.Eviction.of(b, List.of(r.views.get(1)))
          .withOptions(EvictOptions.NONE.withProtected(99));
      Check.fails(KvEvictException.class, () -> Batch.evict(List.of(good, gone), workspace),
          "items[1]: protected_positions[0] 99");
      Batch.Eviction same = Batch.Eviction.of(b, views);
      Check.fails(KvEvictException.class, () -> Batch.evict(List.of(good, same), workspace),
          "items[0] and [1]: views[0].k");
      Check.equal(30, a.storedLength(0));
      Check.fails(KvEvictException.class,
          () -> Batch.append(List.of(Batch.Tokens.of(b, 1), Batch.Tokens.of(a, N)), 0),
          "items[1]: n_tokens");
      Check.fails(IllegalStateException.class,
          () -> Batch.append(List.of(Batch.Tokens.of(b, 1), Batch.Tokens.of(b, 1)), 0),
          "in use");
      Check.equal(12, b.logicalLength());
      Batch.trimTo(List.of(), 0);
      Batch.observe(List.of(), 0);
      Check.equal(0L, Batch.workspace(List.of()).bestBytes());
      Check.equal(List.of(), Batch.evict(List.of(), null));
    }
  }

  /** One policy for the prompt, another while decoding. */
  static void forksGoOnUnderAnotherPlan() {
    try (Context context = Context.create();
        Plan prompt = Caches.plan(context, 1, N, "snapkv:budget=16,window=4,sink=4,scope=layer");
        Plan decode = Caches.plan(context, 1, N, "streaming-llm:budget=8,sink=2");
        Plan other = Caches.plan(context, 2, N, "none");
        Requests r = new Requests(prompt)) {
      Sequence sequence = r.sequences.get(0);
      List<View> views = List.of(r.views.get(0));
      sequence.observe(0, r.queries.get(0), 40, 0);
      sequence.append(40);
      sequence.evict(views, prompt.workspace(Operation.EVICT).allocate());
      sequence.endPrompt();
      int[] before = sequence.keepPositions(0, 1);
      try (Sequence fork = sequence.fork(decode)) {
        sequence.close();
        Check.equal(before, fork.keepPositions(0, 1));
        fork.append(1);
        fork.evict(views, decode.workspace(Operation.EVICT).allocate());
        Check.equal(new int[] {before[0], before[1], before[11], before[12], before[13],
            before[14], before[15], 40}, fork.keepPositions(0, 1));
        Check.fails(KvEvictException.class, () -> fork.fork(other), "plan: n_layers 2");
      }
    }
  }

  static void layersHaveBudgetsOfTheirOwn() {
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 2, N, "knorm:budget=5");
        Plan own = context.newPlan(plan.geometry(), plan.policy(),
            PlanOptions.NONE.withLayerBudgets(0.5, 9))) {
      Check.equal(new int[] {15, 9}, own.layerBudgets(30));
      Check.fails(KvEvictException.class,
          () -> context.newPlan(plan.geometry(), plan.policy(),
              PlanOptions.NONE.withLayerBudgets(1)),
          "layer_budgets_len 1");
    }
  }
}
