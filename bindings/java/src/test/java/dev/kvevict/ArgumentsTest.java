package dev.kvevict;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.Arrays;
import java.util.List;

/**
 * What is found before the library is called: numbers below 0, buffers that are too short or
 * read-only, and objects that are missing or in use. The library's own checks are in the transcript.
 */
final class ArgumentsTest {
  private static final int N = 10;
  private static final int ROW = Caches.KVH * Caches.D;
  private static final Class<IllegalArgumentException> WRONG = IllegalArgumentException.class;
  private static final Class<NullPointerException> NULL = NullPointerException.class;
  private static final Class<IllegalStateException> STATE = IllegalStateException.class;

  private final FloatBuffer k = Caches.random(N * ROW, 1);
  private final View view = Caches.view(k, Caches.random(N * ROW, 2));
  private final View readOnly = Caches.view(k.asReadOnlyBuffer(), Caches.random(N * ROW, 2));
  private final IntBuffer one = Caches.ints(1);

  private ArgumentsTest() {}

  static void movesAreChecked() {
    ArgumentsTest t = new ArgumentsTest();
    KeepLists keep = KeepLists.of(1, 1);
    Move good = Move.of(t.view, N, keep);
    Check.fails(NULL, () -> KeepLists.of(null, 1, 1), "slots");
    Check.fails(NULL, () -> Move.of(null, N, keep), "view");
    Check.fails(NULL, () -> Move.of(t.view, N, null), "keep");
    Check.fails(WRONG, () -> KeepLists.of(3, new int[10]), "10 slots are not 3 lists");
    Check.fails(WRONG, () -> KeepLists.at(0, 0, 1, -1), "count is negative");
    Check.fails(WRONG, () -> KeepLists.at(0, 0, -1, 1), "listCount is negative");
    Check.fails(WRONG, () -> keep.withListStride(-1), "listStride is negative");
    Check.fails(WRONG, () -> Move.of(t.view, -1, keep), "tokenCount is negative");
    Check.fails(WRONG, () -> good.withFirstSlot(-1), "firstSlot");
    try (Context context = Context.create()) {
      ByteBuffer scratch = Caches.bytes(4096 + 64).alignedSlice(64);
      List<Check.Code> tooLong = List.of(
          () -> context.compact(List.of(Move.of(t.view, N + 1, keep))),
          () -> context.reorder(List.of(Move.of(t.view, N + 1, keep)), scratch),
          () -> context.reorderWorkspace(Caches.sized(t.view, 1, N + 1)).bestBytes());
      tooLong.forEach(call -> Check.fails(WRONG, call, "k holds 10 rows of 2 heads, not 11"));
      View short8 = Caches.view(Caches.floats(8 * ROW), Caches.floats(8 * ROW));
      Check.fails(WRONG, () -> context.compact(List.of(good.withFirstSlot(8).withDestination(short8))),
          "k holds 8 rows of 2 heads, not 9");
      Check.fails(WRONG, () -> context.compact(List.of(Move.of(t.readOnly, N, keep))), "k", "read-only");
      Check.fails(WRONG, () -> context.reorder(List.of(Move.of(t.readOnly, N, keep)), scratch), "read-only");
      Check.fails(WRONG, () -> context.compact(List.of(good.withTokenCounts(t.one))),
          "tokenCounts has 1 elements, 2 are needed");
      Check.fails(WRONG, () -> context.reorder(List.of(good), ByteBuffer.allocate(4096)),
          "workspace is not a direct buffer");
      SelectOptions options = SelectOptions.of(N).withScores(Caches.floats(2 * N));
      KeepLists lists = KeepLists.of(Caches.ints(new int[8]), 2, 4);
      Check.fails(WRONG, () -> context.select(options, lists.withCounts(t.one), scratch),
          "counts has 1 elements, 2 are needed");
      Check.fails(WRONG, () -> context.select(options,
          KeepLists.of(Caches.ints(new int[8]).asReadOnlyBuffer(), 2, 4), scratch), "slots is read-only");
      Check.fails(WRONG, () -> LayerScores.of(Caches.floats(4), 3), "3 rows");
    }
    Check.fails(WRONG, () -> TokenRange.of(-1, 5, 1), "first");
    Check.fails(WRONG, () -> PlanOptions.NONE.withHeadBudgets(24, -1), "headBudgets");
    Check.fails(WRONG, () -> SignalInputs.NONE.withSumHeads(-1), "sumHeads");
  }

  static void attentionAndRotationsAreChecked() {
    ArgumentsTest t = new ArgumentsTest();
    Plane queries = Caches.plane(Caches.random(Caches.QH * Caches.D, 3), Caches.QH);
    Plane fixed = Caches.plane(Caches.floats(Caches.QH * Caches.D).asReadOnlyBuffer(), Caches.QH);
    Attention good = Attention.of(t.view, N, Caches.QH, 1, queries, queries);
    IntBuffer offsets = Caches.ints(new int[N]);
    Rotation turn = Rotation.of(0, t.view, N, offsets);
    Check.fails(WRONG, () -> Attention.of(t.view, -1, Caches.QH, 1, queries, queries), "tokenCount is negative: -1");
    Check.fails(WRONG, () -> good.withWindow(-1), "window is negative: -1");
    Check.fails(WRONG, () -> Rotation.of(0, t.view, -1, offsets), "tokenCount is negative: -1");
    Check.fails(WRONG, () -> turn.withListCount(-1), "listCount is negative: -1");
    try (Context context = Context.create(); Plan plan = Caches.plan(context, 1, N, "none")) {
      attend(context, Attention.of(t.view, N + 1, Caches.QH, 1, queries, queries), "k", "10", "11");
      attend(context, Attention.of(t.view, N, Caches.QH, 2, queries, queries), "queries", "1", "2");
      attend(context, Attention.of(t.view, N, Caches.QH, 1, queries, fixed), "out", "read-only");
      attend(context, good.withTokenCounts(t.one), "tokenCounts has 1 elements, 2 are needed");
      rotate(plan, Rotation.of(0, t.view, N + 1, offsets), "k", "10", "11");
      rotate(plan, Rotation.of(0, t.readOnly, N, offsets), "read-only");
      rotate(plan, turn.withTokenCounts(t.one), "tokenCounts has 1 elements, 2 are needed");
    }
  }

  private static void attend(Context context, Attention job, String... parts) {
    Check.fails(WRONG, () -> context.attend(List.of(job), null), parts);
  }

  private static void rotate(Plan plan, Rotation rotation, String... parts) {
    Check.fails(WRONG, () -> plan.rotate(List.of(rotation)), parts);
  }

  static void layoutsAreChecked() {
    FloatBuffer floats = Caches.floats(N * Caches.D);
    View ring = View.builder(1).ringSlots(N + 1).ringFirst(0)
        .k(Plane.of(floats, DType.F32, Caches.D, 8, 0).withGroupElements(2).withGroupStride(8 * N)).build();
    Check.fails(WRONG, () -> ring.validate(1), "k holds 10 rows of 1 heads, not 11");
    View packed = View.of(2, Plane.of(Caches.bytes(40), DType.U4, 4, 4, 2), null);
    Check.fails(WRONG, () -> packed.validate(N + 1), "10 rows");
    Plane numbers = Plane.of(Caches.floats(24), DType.F32, 4, 32, 16);
    View recent = View.builder(2).k(Plane.of(Caches.bytes(64), DType.U8, 4, 8, 4))
        .companion(numbers.withRole(Role.KEY_SCALE).withGroupTokens(4))
        .companion(numbers.withRole(Role.KEY_RECENT)).firstRecent(8).build();
    Check.fails(WRONG, () -> recent.validate(12), "3 rows");
    Check.fails(WRONG, () -> Caches.plane(floats, 1).withAddressTable(8, 1), "use Plane.at()");
  }

  static void sequencesAreChecked() {
    ArgumentsTest t = new ArgumentsTest();
    LayerGeometry full = LayerGeometry.builder().queryHeads(Caches.QH).kvHeads(Caches.KVH).headDim(Caches.D).build();
    Geometry unlike = Geometry.of(N, List.of(full, LayerGeometry.builder().cache(LayerCache.NONE).build()));
    try (Context context = Context.create();
        Plan plan = context.newPlan(unlike, Policy.parse("knorm:sink=0,budget=4"),
            PlanOptions.NONE.withDestinations(true));
        Sequence sequence = plan.newSequence();
        Sequence other = plan.newSequence()) {
      ByteBuffer scratch = plan.workspace(Operation.EVICT).allocate();
      List<View> views = Arrays.asList(t.view, null);
      sequence.append(N);
      Check.fails(WRONG, () -> sequence.evict(List.of(t.view), scratch), "1 views for 2 layers");
      Check.fails(NULL, () -> sequence.evict(Arrays.asList(null, null), scratch), "views[0] is null");
      Check.fails(NULL, () -> sequence.undoBytes(Arrays.asList(null, t.view)), "views[0] is null");
      Check.fails(WRONG, () -> sequence.undo(List.of(), scratch), "0 views for 2 layers");
      Check.fails(WRONG, () -> sequence.keptSlots(List.of()), "0 views for 2 layers");
      View small = Caches.view(Caches.floats(3 * ROW), Caches.floats(3 * ROW));
      destinations(sequence, views, scratch, WRONG, List.of(small), "1 destinations for 2 layers");
      destinations(sequence, views, scratch, WRONG, Arrays.asList(small, null), "3 rows", "4");
      destinations(sequence, views, scratch, NULL, Arrays.asList(null, null), "destinations[0] is null");
      Plane queries = Caches.plane(Caches.floats(Caches.QH * Caches.D), Caches.QH);
      Check.fails(WRONG, () -> sequence.observe(List.of(Caches.queries(queries)), 1, 0), "1 inputs for 2 layers");
      SignalInputs sums = SignalInputs.NONE.withAttentionSums(Caches.scores(Caches.floats(2 * N), N))
          .withSumHeads(Caches.KVH);
      Check.fails(WRONG, () -> sequence.observe(0, sums, 1, Sequence.POSITION_NEXT, 0), "attentionSums");
      Check.fails(WRONG, () -> sequence.beginObserving(ByteBuffer.allocate(8)), "direct");
      Check.fails(STATE, () -> Batch.append(
          List.of(Batch.Tokens.of(other, 1), Batch.Tokens.of(other, 1)), 0), "in use");
      Check.fails(WRONG, () -> Batch.Tokens.of(other, -1), "negative");
      Check.fails(NULL, () -> Batch.Length.of(null, 1), "sequence");
      Batch.append(List.of(Batch.Tokens.of(other, 1)), 0); // the failed calls have left it
      IntBuffer table = Caches.ints(0);
      View paged = View.builder(Caches.KVH).k(Caches.plane(t.k, Caches.KVH).withBlockStride(N * ROW * 4))
          .v(Caches.plane(Caches.floats(N * ROW), Caches.KVH).withBlockStride(N * ROW * 4))
          .paged(N, table.asReadOnlyBuffer()).build();
      Check.fails(WRONG, () -> sequence.evict(
          Arrays.asList(paged, null), EvictOptions.NONE.withByTable(true), scratch), "read-only");
    }
  }

  private static void destinations(Sequence sequence, List<View> views, ByteBuffer scratch,
      Class<? extends RuntimeException> type, List<View> to, String... parts) {
    Check.fails(type, () -> sequence.evict(views, EvictOptions.NONE.withDestinations(to), scratch), parts);
  }

  /** Views need rows for what an edit adds, and no more. The views here have 44. */
  static void editsAreChecked() {
    Check.fails(WRONG, () -> Edit.replace(-1, 6, 0), "first is negative: -1");
    Check.fails(WRONG, () -> Edit.replace(1, 6, -3), "newCount is negative: -3");
    Check.fails(WRONG, () -> Edit.move(1, 6, -2), "to is negative: -2");
    Check.fails(NULL, () -> Edit.move(1, 6, 2).withPositions(null), "positions");
    View v = Caches.view(Caches.floats(44 * ROW), Caches.floats(44 * ROW));
    Edit none = Edit.replace(0, 0, 0);
    Geometry geometry = Geometry.builder().layers(2).queryHeads(Caches.QH).kvHeads(Caches.KVH).headDim(Caches.D)
        .maxTokens(48).build().withRope(RopeLayout.HALF, 1, 0.25f);
    try (Context context = Context.create(); Plan plan = context.newPlan(geometry, Policy.of("none"));
        PagedCache cache = plan.newPagedCache(PagedCacheOptions.of(4))) {
      PagedSequence cached = cache.newSequence();
      Sequence sequence = plan.newSequence();
      sequence.append(40);
      List<View> views = List.of(v, v);
      Check.fails(WRONG, () -> sequence.edit(views, Edit.replace(9, 9, 5)), "holds 44 rows of 2 heads, not 45");
      Check.fails(WRONG, () -> sequence.edit(List.of(v), none), "1 views for 2 layers");
      Check.fails(NULL, () -> sequence.edit(Arrays.asList(v, null), none), "views[1]");
      sequence.edit(views, Edit.replace(9, 9, 4)); // all rows are in use
      sequence.edit(views, Edit.replace(20, 26, 6)); // and may be replaced
      sequence.edit(views, Edit.move(3, 5, 9));
      Check.equal(44, sequence.logicalLength());
      sequence.close();
      Check.fails(STATE, () -> sequence.edit(views, none), "this Sequence is closed");
      Check.fails(STATE, () -> cached.edit(sequence, none), "this Sequence is closed");
      cached.close();
      Check.fails(STATE, () -> cached.edit(sequence, none), "this PagedSequence is closed");
    }
  }

  static void pagedCachesAreChecked() {
    PagedCacheOptions options = PagedCacheOptions.of(8).withBlockSize(4);
    Check.fails(WRONG, () -> PagedCacheOptions.of(-1), "blockCount is negative");
    Check.fails(WRONG, () -> options.withGroupTokens(-1), "groupTokens is negative");
    Check.fails(WRONG, () -> options.withRecentTokens(-1).withRecentDType(DType.F16), "recentTokens is negative");
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, N, "knorm:sink=0,budget=4");
        PagedCache cache = plan.newPagedCache(options);
        PagedSequence cached = cache.newSequence();
        Sequence sequence = plan.newSequence()) {
      ByteBuffer scratch = plan.workspace(Operation.EVICT).allocate();
      cached.append(9);
      sequence.append(9);
      FloatBuffer memory = Caches.floats(ROW);
      Plane rows = Caches.plane(memory, Caches.KVH);
      Plane fixed = Caches.plane(memory.asReadOnlyBuffer(), Caches.KVH);
      Check.fails(WRONG, () -> cached.write(List.of(PagedRows.of(0, 0, 2, rows, null))), "k ");
      Check.fails(WRONG, () -> cached.read(List.of(PagedRows.of(0, 0, 1, fixed, null))), "read-only");
      Check.fails(WRONG, () -> cached.append(-1), "tokenCount is negative");
      Batch.PagedEviction item = Batch.PagedEviction.of(cached, sequence);
      Check.fails(STATE, () -> Batch.evictPaged(List.of(item, item), scratch), "in use");
      Check.fails(KvEvictException.class,
          () -> cached.evict(sequence, EvictOptions.NONE.withUndo(scratch), scratch), "undo");
      cached.evict(sequence, EvictOptions.NONE, scratch); // the failed calls have left it
      Check.equal(4, cached.length(0));
    }
  }
}
