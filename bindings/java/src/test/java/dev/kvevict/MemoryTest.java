package dev.kvevict;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;
import java.util.List;
import java.util.function.Function;

/** Memory that native code would misread or overrun is refused before it is called. */
final class MemoryTest {
  private static final Class<IllegalArgumentException> WRONG = IllegalArgumentException.class;

  private MemoryTest() {}

  static void heapBuffers() {
    Check.fails(WRONG, () -> Plane.of(FloatBuffer.allocate(64), DType.F32, 8, 32, 32),
        "data is not a direct buffer");
    Check.fails(WRONG, () -> Plane.opaque(ByteBuffer.allocate(64), 8, 8, 8), "not a direct");
    Check.fails(WRONG, () -> View.builder(1).paged(1, IntBuffer.allocate(1)), "not a direct");
    Check.fails(WRONG, () -> KeepLists.of(IntBuffer.allocate(1), 1, 1), "not a direct");
    Check.fails(WRONG, () -> KeepLists.of(1, 0).withCounts(IntBuffer.allocate(1)), "not a direct");
    Check.fails(WRONG, () -> SelectOptions.of(1).withScores(FloatBuffer.allocate(1)),
        "not a direct");
  }

  static void bigEndianBuffers() {
    Check.fails(WRONG, () -> Plane.of(ByteBuffer.allocateDirect(64), DType.F16, 8, 16, 16),
        "data is BIG_ENDIAN", "order(ByteOrder.nativeOrder())");
    FloatBuffer floats = ByteBuffer.allocateDirect(64).asFloatBuffer();
    Check.fails(WRONG, () -> Plane.of(floats, DType.F32, 8, 32, 32), "BIG_ENDIAN");
    Check.fails(WRONG,
        () -> View.builder(1).paged(1, ByteBuffer.allocateDirect(4).asIntBuffer()), "BIG_ENDIAN");
    Plane.opaque(ByteBuffer.allocateDirect(64), 8, 8, 8); // bytes have no order
  }

  static void nulls() {
    Check.fails(NullPointerException.class, () -> Plane.of(null, DType.F32, 8, 32, 32), "data");
    Check.fails(NullPointerException.class,
        () -> Plane.of(Caches.floats(8), null, 8, 32, 32));
    Check.fails(NullPointerException.class, () -> Plane.at(1, null, 8, 32, 32), "dtype");
    Check.fails(NullPointerException.class, () -> ScoreJob.of(0, 1, null), "scores");
    Check.fails(NullPointerException.class, () -> ScoreJob.of(0, 1, 0, 0).withInputs(null), "read");
    Check.fails(NullPointerException.class, () -> SelectOptions.of(1).withTie(null), "tie");
    Check.fails(NullPointerException.class, () -> SelectOptions.of(1).withRowCount(1).withReduce(null), "reduce");
  }

  static void typesThatDoNotHoldTheDtype() {
    Check.fails(WRONG, () -> Plane.of(Caches.floats(64), DType.F16, 8, 16, 16),
        "FloatBuffer", "F16");
    Check.fails(WRONG, () -> Plane.of(Caches.bytes(64).asShortBuffer(), DType.F32, 8, 32, 32),
        "ShortBuffer", "F32");
    Check.fails(WRONG, () -> Plane.of(Caches.bytes(64).asIntBuffer(), DType.F32, 8, 32, 32),
        "IntBuffer");
    Check.fails(WRONG, () -> Plane.of(Caches.bytes(64), DType.OPAQUE, 8, 32, 32), "OPAQUE");
    Plane.of(Caches.bytes(64).asShortBuffer(), DType.BF16, 8, 16, 16);
  }

  /** Element e of head h of token t lies where the layout's name says. */
  static void layouts() {
    final int tokens = 6;
    final int heads = 2;
    final int dim = 4;
    final int size = 3;
    ShortBuffer data = Caches.bytes(2 * tokens * heads * dim).asShortBuffer();
    long start = NativeSupport.addressOf(data);
    DType type = DType.BF16;
    long row = 2L * dim;
    same(Plane.of(data, type, dim, row * heads, row), Plane.tokenMajor(data, type, heads, dim),
        Plane.tokenMajor(start, type, heads, dim));
    same(Plane.of(data, type, dim, row, row * tokens), Plane.headMajor(data, type, tokens, dim),
        Plane.headMajor(start, type, tokens, dim));
    same(Plane.of(data, type, dim, 2, row * tokens).withElementStride(2 * tokens),
        Plane.transposed(data, type, tokens, dim), Plane.transposed(start, type, tokens, dim));
    same(Plane.of(data, type, dim, row * heads, row).withBlockStride(row * heads * size),
        Plane.pagedTokenMajor(data, type, size, heads, dim),
        Plane.pagedTokenMajor(start, type, size, heads, dim));
    same(Plane.of(data, type, dim, row, row * size).withBlockStride(row * heads * size),
        Plane.pagedHeadMajor(data, type, size, heads, dim),
        Plane.pagedHeadMajor(start, type, size, heads, dim));
    same(Plane.of(data, type, dim, 4, row * size).withGroupElements(2).withGroupStride(4 * size)
            .withBlockStride(row * heads * size),
        Plane.vectorised(data, type, size, heads, dim, 2),
        Plane.vectorised(start, type, size, heads, dim, 2));
    LongBuffer table = Caches.bytes(16).asLongBuffer();
    same(Plane.at(10, type, dim, row * heads, row).withAddressTable(table),
        Plane.inBlocks(table, type, heads, dim, 10));
    same(Plane.at(8, DType.Q8_0, 64, 2 * 68, 68), Plane.tokenMajor(8, DType.Q8_0, 2, 64));
    Check.equal(6L, Plane.tokenMajor(data, type, heads, dim).capacity(heads));
  }

  static void layoutsThatCannotBe() {
    ByteBuffer data = Caches.bytes(64);
    Check.fails(WRONG, () -> Plane.tokenMajor(data, DType.OPAQUE, 1, 8), "OPAQUE make no row");
    Check.fails(WRONG, () -> Plane.transposed(data, DType.Q8_0, 1, 32), "Q8_0 are not bytes");
    Check.fails(WRONG, () -> Plane.headMajor(data, DType.F32, -1, 8), "is negative: -1");
    Check.fails(WRONG, () -> Plane.headMajor(data, DType.Q8_0, 1, 31), "31 elements of Q8_0");
    Check.fails(WRONG, () -> Plane.pagedTokenMajor(
        data, DType.F32, Integer.MAX_VALUE, Integer.MAX_VALUE, Integer.MAX_VALUE), "exceeds 64 bits");
    Check.fails(WRONG, () -> Plane.tokenMajor(Caches.floats(8), DType.BF16, 1, 8), "FloatBuffer");
  }

  /** All are written to the library alike. */
  private static void same(Plane wanted, Plane... planes) {
    for (Plane plane : planes) {
      Struct expected = new Struct(Abi.Plane.SIZEOF);
      Struct actual = new Struct(Abi.Plane.SIZEOF);
      Plane.write(wanted, expected, 0);
      Plane.write(plane, actual, 0);
      for (int at = 0; at < Abi.Plane.SIZEOF; at += 4) {
        Check.equal(at + ": " + expected.intAt(at), at + ": " + actual.intAt(at));
      }
    }
  }

  static void endsOfPlanes() {
    // 10 rows of 2 heads of 8 floats
    Plane plane = Caches.plane(Caches.floats(160), 2);
    Check.equal(10L, plane.capacity(2));
    Check.equal(9L, plane.from(32).capacity(2)); // the second head of a row on
    Check.equal(10L, plane.from(32).capacity(1));
    Check.equal(0L, Caches.plane(Caches.floats(15), 2).capacity(2));
    Check.equal(9L, Caches.plane(Caches.floats(159), 2).capacity(2));
    // head-major [2, 5, 8]: the tokens of the last head end it
    Plane headMajor = Plane.of(Caches.floats(80), DType.F32, 8, 32, 160);
    Check.equal(5L, headMajor.capacity(2));
    // transposed V [16, 10]
    Plane transposed = Plane.of(Caches.floats(160), DType.F32, 8, 4, 320).withElementStride(40);
    Check.equal(10L, transposed.capacity(2));
    // backwards from the last row
    Plane backwards = Plane.of(Caches.floats(160), DType.F32, 8, -64, 32).from(9 * 64);
    Check.equal(10L, backwards.capacity(2));
    Check.equal(0L, Plane.of(Caches.floats(160), DType.F32, 8, 64, -32).capacity(2));
    // 4 blocks of 2 tokens
    Plane paged = Caches.plane(Caches.floats(4 * 2 * 16), 2).withBlockStride(128);
    Check.equal(4L, paged.blocks(2, 2));
    Check.equal(3L, paged.from(4).blocks(2, 2));
    Check.equal(Long.MAX_VALUE, Plane.at(1, DType.F32, 8, 64, 32).capacity(2));
    Check.fails(WRONG, () -> Plane.of(Caches.floats(8), DType.F32, 8, 32, Long.MAX_VALUE)
        .capacity(3), "64 bits");
    Check.fails(WRONG, () -> plane.from(641), "outside of the buffer");
    Check.fails(WRONG, () -> plane.from(-1), "outside of the buffer");
    Check.fails(WRONG, () -> plane.from(Long.MIN_VALUE), "outside of the buffer");
  }

  static void inputsThatAreTooShort() {
    SignalInputs none = SignalInputs.NONE;
    LayerGeometry shape = LayerGeometry.builder().queryHeads(4).kvHeads(2).headDim(8).build();
    tooShort(shape, 4, 3, 8, "queries", none::withQueries);
    tooShort(shape, 4, 3, 1, "rowLse", none::withRowLse);
    tooShort(shape, 2, 5, 1, "scores", none::withScores);
    tooShort(shape, 4, 5, 1, "attentionSums", plane -> none.withAttentionSums(plane).withSumHeads(0));
    tooShort(shape, 2, 5, 1, "attentionSums", plane -> none.withAttentionSums(plane).withSumHeads(2));
    tooShort(shape, 4, 1, 8, "queryMean", plane -> none.withQueryStatistics(plane, null));
    tooShort(shape, 4, 8, 8, "queryCovariance", plane -> none.withQueryStatistics(null, plane));
    tooShort(shape, 2, 1, 8, "keyFilter", none::withKeyFilter);
    tooShort(shape, 2, 5, 1, "tokenWeights", none::withTokenWeights);
    tooShort(shape, 4, 3, 4, "queryCenters", none::withQueryCenters);
    tooShort(shape, 4, 2, 8, "referenceQueries", plane -> none.withReferenceQueries(plane).withReferenceRows(2));
  }

  /** With 3 query rows and 5 slots, [headCount, rowCount, dim] numbers suffice, one less does not. */
  private static void tooShort(LayerGeometry shape, int headCount, int rowCount, int dim, String name,
      Function<Plane, SignalInputs> inputs) {
    for (int less = 0; less < 2; ++less) {
      FloatBuffer numbers = Caches.floats(headCount * rowCount * dim - less);
      SignalInputs given =
          inputs.apply(Plane.of(numbers, DType.F32, dim, 4 * dim, 4L * dim * rowCount));
      Runnable check = () -> {
        given.requireRows(3, shape, 7);
        given.requireSlots(5, shape, 7);
      };
      if (less == 0) {
        check.run();
      } else {
        Check.fails(WRONG, check::run, name + " of layer 7 holds " + (rowCount - 1) + " rows of "
            + headCount + " heads, not " + rowCount);
      }
      given.requireRows(3, Geometry.builder().build().evicted(0), 7);
    }
  }

  static void buffersThatAreTooShort() {
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, 64, "snapkv:budget=16,window=4");
        Sequence sequence = plan.newSequence();
        View view = Caches.view(Caches.floats(64 * 16), Caches.floats(63 * 16))) {
      sequence.beginObserving();
      view.validate(63);
      Check.fails(WRONG, () -> view.validate(64), "v holds 63 rows of 2 heads, not 64");
      Plane queries = Caches.plane(Caches.floats(3 * 32), 4);
      Check.fails(WRONG, () -> sequence.observe(0, queries, 4, 0),
          "queries of layer 0 holds 3 rows of 4 heads, not 4");
      for (int stride : new int[] {4, 0}) { // or packed
        SignalInputs inputs =
            SignalInputs.NONE.withRowLse(Plane.of(Caches.floats(15), DType.F32, 1, 4 * stride, stride));
        Check.fails(WRONG, () -> sequence.observe(0, inputs, 4, 0, 0),
            "rowLse of layer 0 holds 3 rows of 4 heads, not 4");
      }
      Check.fails(WRONG,
          () -> plan.score(Caches.jobs(view, 63, queries, Caches.floats(126)), null),
          "queries of layer 0 holds 3 rows");
      Check.fails(WRONG, () -> plan.score(List.of(
          ScoreJob.of(0, 64, Caches.floats(128).asReadOnlyBuffer())), null), "scores is read-only");
      Check.fails(NullPointerException.class, () -> sequence.observe(0, null, 3, 0), "queries");
      sequence.append(64);
      Check.fails(WRONG, () -> sequence.evict(List.of(view), null), "v holds 63 rows of 2 heads, not 64");
      SignalInputs scores =
          SignalInputs.NONE.withScores(Caches.scores(Caches.floats(2 * 64 - 1), 64));
      tooShort(sequence, view, List.of(Caches.queries(queries)), "queries of layer 0 holds 3 rows of 4 heads, not 4");
      tooShort(sequence, view, List.of(), "0 inputs for 1 layers");
      tooShort(sequence, view, List.of(scores), "scores of layer 0 holds 63 rows of 2 heads, not 64");
      Check.fails(KvEvictException.class,
          () -> sequence.keepPositions(0, 0, Caches.bytes(63 * 4).asIntBuffer()), "63", "64");
    }
  }

  private static void tooShort(Sequence sequence, View view, List<SignalInputs> inputs, String why) {
    Check.fails(WRONG, () -> sequence.evict(List.of(view), EvictOptions.NONE.withInputs(inputs), null), why);
  }

  static void blockTablesThatNameMissingBlocks() {
    IntBuffer table = Caches.bytes(8).asIntBuffer().put(0, 3).put(1, 4);
    Plane pool = Caches.plane(Caches.floats(4 * 2 * 16), 2).withBlockStride(128);
    try (View view = View.builder(2).k(pool).paged(2, table).build()) {
      view.validate(2);
      Check.fails(WRONG, () -> view.validate(3), "k holds 4 blocks, the block table names 4");
      table.put(1, 2); // read when calls are made
      view.validate(4);
    }
    // A table for each head: {0, 1} and {3, 4}.
    IntBuffer tables = Caches.ints(0, 1, 3, 4);
    try (View view = View.builder(2).k(pool).paged(2, tables).blockTableHeadStride(2).build()) {
      view.validate(2);
      Check.fails(WRONG, () -> view.validate(3), "k holds 4 blocks, the block table names 4");
      // The table of a head without tokens may name anything.
      try (Context context = Context.create();
          Plan plan = Caches.plan(context, 1, 4, "knorm:sink=0,budget=2")) {
        Move move = Move.of(view, 3, KeepLists.of(2, 2, 1));
        Check.fails(WRONG, () -> context.compact(List.of(move)), "table names 4");
        context.compact(List.of(move.withTokenCounts(Caches.ints(3, 2))));
        Check.fails(WRONG, () -> context.compact(
            List.of(move.withTokenCounts(Caches.ints(3, 3)))), "table names 4");
        Check.fails(WRONG, () -> context.compact(
            List.of(move.withTokenCounts(Caches.ints(3)))),
            "tokenCounts has 1 elements, 2 are needed");
        Check.fails(WRONG, () -> move.withTokenCounts(IntBuffer.allocate(2)), "not a direct");
        ScoreJob job = ScoreJob.of(0, 3, Caches.floats(6)).withView(view);
        ByteBuffer workspace = plan.workspace(Operation.SCORE).allocate();
        Check.fails(WRONG, () -> plan.score(List.of(job), workspace), "table names 4");
        plan.score(
            List.of(job.withTokenCounts(Caches.ints(3, 2))), workspace);
      }
      tables.put(3, 2);
      view.validate(4);
    }
  }

  static void negativeCounts() {
    Check.fails(WRONG, () -> Plane.at(1, DType.F32, -8, 0, 0), "headDim is negative: -8");
    Check.fails(WRONG, () -> View.builder(-1), "kvHeads");
    Check.fails(WRONG, () -> KvEvict.autoBudget(1, -1), "fullCacheBytes");
    try (Context context = Context.create();
        Plan plan = Caches.plan(context, 1, 64, "snapkv:budget=16,window=4");
        Sequence sequence = plan.newSequence();
        View view = Caches.view(Caches.floats(64), Caches.floats(64))) {
      Check.fails(WRONG, () -> context.newPlan(Geometry.builder().layers(-1).build(),
          plan.policy()), "layers is negative");
      Check.fails(WRONG, () -> sequence.append(Integer.MAX_VALUE + 1), "tokenCount is negative");
      Check.fails(WRONG, () -> view.validate(-1), "tokenCount");
      Check.fails(KvEvictException.class, () -> sequence.storedLength(-1), "4294967295");
      Check.fails(KvEvictException.class, () -> sequence.append(65), "65");
      Check.fails(KvEvictException.class, () -> sequence.trimTo(65), "new_length 65");
      sequence.trimTo(sequence.logicalLength());
    }
  }

  /** A view takes the buffer from its position on. */
  static void positionsAndSlices() {
    FloatBuffer whole = Caches.random(40, 1);
    long base = Memory.address(whole, "whole");
    Check.equal(base + 8 * 4, Memory.address(whole.duplicate().position(8), "part"));
    Check.equal(32L * 4, Memory.bytes(whole.duplicate().position(8)));
    Check.equal(base + 8 * 4, Memory.address(whole.slice(8, 8), "slice"));
    Check.equal(8L * 4, Memory.bytes(whole.slice(8, 8)));
    Check.equal(64, Caches.bytes(64).asLongBuffer().remaining() * 8);
    Check.equal(64L, Memory.bytes(Caches.bytes(64).asLongBuffer()));
    Check.equal(64L, Memory.bytes(Caches.bytes(64).asCharBuffer()));
  }
}
