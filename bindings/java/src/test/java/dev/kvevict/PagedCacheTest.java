package dev.kvevict;

import static dev.kvevict.Caches.D;
import static dev.kvevict.Caches.KVH;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;

/** Sequences in a pool, held against what each would hold in memory of its own. */
final class PagedCacheTest {
  private static final int LAYERS = 2;
  private static final int N = 64;
  private static final int ROW = KVH * D;
  private static final String POLICY = "knorm:budget=12,sink=1,scope=head";

  private PagedCacheTest() {}

  private static PagedCacheOptions blocks(int n) {
    return PagedCacheOptions.of(n).withBlockSize(4);
  }

  /** A plan, a cache and scratch. */
  private static final class Pool implements AutoCloseable {
    final Context context = Context.create();
    final Plan plan = Caches.plan(context, LAYERS, N, POLICY);
    final ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
    final PagedCache cache;

    Pool(PagedCacheOptions options) {
      cache = plan.newPagedCache(options);
    }

    @Override
    public void close() {
      cache.close();
      plan.close();
      context.close();
    }
  }

  /** One request, and which number's row each slot of a layer and head holds. */
  private static final class Actor implements AutoCloseable {
    static int lastRow;

    final PagedSequence cached;
    final Sequence sequence;
    final List<List<Integer>> rows = new ArrayList<>();

    private Actor(PagedSequence cached, Sequence sequence) {
      this.cached = cached;
      this.sequence = sequence;
    }

    static Actor begin(Pool pool) {
      Actor actor = new Actor(pool.cache.newSequence(), pool.plan.newSequence());
      for (int i = 0; i < LAYERS * KVH; ++i) {
        actor.rows.add(new ArrayList<>());
      }
      return actor;
    }

    Actor fork() {
      Actor fork = new Actor(cached.fork(), sequence.fork());
      rows.forEach(list -> fork.rows.add(new ArrayList<>(list)));
      return fork;
    }

    int length() {
      return rows.get(0).size();
    }

    boolean append(int n) {
      try {
        cached.append(n);
      } catch (KvEvictException e) {
        Check.equal(Status.OUT_OF_MEMORY, e.status());
        Check.that(e.getMessage().contains("are free"), e.getMessage());
        return false;
      }
      sequence.append(n);
      for (int layer = 0; layer < LAYERS; ++layer) {
        for (int i = 0; i < n; ++i) {
          ++lastRow;
          for (int head = 0; head < KVH; ++head) {
            rows.get(layer * KVH + head).add(lastRow);
          }
        }
        use(layer, rows.get(layer * KVH).size() - n, n, true);
      }
      return true;
    }

    /** Writes rows into the cache, or reads and compares them. */
    void use(int layer, int first, int n, boolean writes) {
      FloatBuffer k = Caches.floats(n * ROW);
      FloatBuffer v = Caches.floats(n * ROW);
      float[] wanted = new float[n * ROW];
      for (int i = 0; i < wanted.length; ++i) {
        int head = i / D % KVH;
        int row = rows.get(layer * KVH + head).get(first + i / ROW);
        wanted[i] = (row * 37 + head * 11 + layer * 5 + i % D * 3) % 101 - 50 + row / 1024f;
        if (writes) {
          k.put(i, wanted[i]);
          v.put(i, -wanted[i]);
        }
      }
      List<PagedRows> part =
          List.of(PagedRows.of(layer, first, n, Caches.plane(k, KVH), Caches.plane(v, KVH)));
      if (writes) {
        cached.write(part);
        return;
      }
      cached.read(part);
      for (int i = 0; i < wanted.length; ++i) {
        Check.that(wanted[i] == k.get(i) && wanted[i] == -v.get(i), "layer " + layer + ": "
            + wanted[i] + " is " + k.get(i) + " and " + v.get(i));
      }
    }

    void trim(int length) {
      try {
        sequence.trimTo(length);
      } catch (KvEvictException e) {
        return; // before the last eviction
      }
      cached.fit(sequence);
      for (int i = 0; i < rows.size(); ++i) {
        rows.get(i).subList(sequence.storedLength(i / KVH), rows.get(i).size()).clear();
      }
    }

    int[][] positions() {
      int[][] positions = new int[rows.size()][];
      for (int i = 0; i < positions.length; ++i) {
        positions[i] = sequence.keepPositions(i / KVH, i % KVH);
      }
      return positions;
    }

    void follow(int[][] before) {
      int[][] after = positions();
      for (int i = 0; i < after.length; ++i) {
        List<Integer> kept = new ArrayList<>();
        for (int slot = 0, from = 0; slot < after[i].length; ++slot) {
          while (before[i][from] != after[i][slot]) {
            ++from;
          }
          kept.add(rows.get(i).get(from));
        }
        rows.set(i, kept);
      }
    }

    void check() {
      for (int layer = 0; layer < LAYERS; ++layer) {
        int n = cached.length(layer);
        Check.equal(rows.get(layer * KVH).size(), n);
        cached.view(layer).validate(n);
        use(layer, 0, n, false);
      }
    }

    @Override
    public void close() {
      cached.close();
      sequence.close();
    }
  }

  static void holdsWhatEachWouldHoldAlone() {
    for (BlockLayout layout : BlockLayout.values()) {
      live(new Random(layout.value() + 1), layout);
    }
  }

  private static void live(Random random, BlockLayout layout) {
    try (Pool pool = new Pool(blocks(26).withLayout(layout))) {
      List<Actor> actors = new ArrayList<>(List.of(Actor.begin(pool)));
      int refused = 0;
      long evictions = 0;
      for (int step = 0; step < 150; ++step) {
        Actor actor = actors.get(random.nextInt(actors.size()));
        int what = random.nextInt(8);
        if (what == 0 && actors.size() < 6) {
          actors.add(random.nextInt(3) == 0 ? Actor.begin(pool) : actor.fork());
        } else if (what == 1 && actors.size() > 3) {
          actor.close();
          actors.remove(actor);
        } else if (what == 2) {
          actor.trim(random.nextInt(actor.sequence.logicalLength() + 1));
        } else if (what == 3) {
          List<Actor> chosen = actors.stream().filter(a -> random.nextBoolean()).toList();
          List<int[][]> before = chosen.stream().map(Actor::positions).toList();
          try {
            Batch.evictPaged(chosen.stream()
                .map(a -> Batch.PagedEviction.of(a.cached, a.sequence)).toList(), pool.workspace);
          } catch (KvEvictException e) {
            Check.equal(Status.OUT_OF_MEMORY, e.status());
            ++refused;
          }
          for (int i = 0; i < chosen.size(); ++i) {
            chosen.get(i).follow(before.get(i));
          }
          evictions += chosen.stream().filter(a -> a.sequence.report().evicted()).count();
        } else {
          int room = N - actor.length();
          refused += actor.append(random.nextInt(Math.min(room, 12) + 1)) ? 0 : 1;
        }
        actors.forEach(Actor::check);
        PagedCacheUsage usage = pool.cache.usage();
        Check.equal(actors.size(), usage.sequenceCount());
        Check.equal(actors.stream().mapToLong(a -> LAYERS * a.length()).sum(), usage.slotCount());
      }
      Check.that(refused > 0 && evictions > 0, refused + " refused, " + evictions + " evictions");
      actors.forEach(Actor::close);
      PagedCacheUsage usage = pool.cache.usage();
      Check.equal(List.of(usage.blockCount(), 0L, 0L),
          List.of(usage.freeCount(), usage.sharedCount(), usage.bytesInUse()));
      Check.equal(pool.plan.pagedCacheBytes(blocks(26)), usage.bytes());
    }
  }

  static void forksShareUntilOneWrites() {
    try (Pool pool = new Pool(blocks(40)); Actor actor = Actor.begin(pool)) {
      actor.append(30); // 8 blocks a layer
      try (Actor fork = actor.fork()) {
        Check.equal(16L, pool.cache.usage().sharedCount());
        Check.equal(64L, pool.cache.usage().freeCount());
        fork.use(0, 5, 1, true);
        Check.equal(15L, pool.cache.usage().sharedCount());
        fork.cached.own(28);
        Check.equal(13L, pool.cache.usage().sharedCount());
        EvictReport report = fork.cached.evict(
            fork.sequence, EvictOptions.NONE.withProtected(7), pool.workspace);
        Check.equal(List.of(true, 60L, 24L),
            List.of(report.evicted(), report.tokensBefore(), report.tokensAfter()));
        Check.that(fork.sequence.slotOfPosition(0, 1, 7) >= 0, "7 is gone");
        actor.check();
        fork.cached.own(0);
        Check.equal(0L, pool.cache.usage().sharedCount());
        fork.cached.truncate(5);
        Check.equal(80L - 16 - 4, pool.cache.usage().freeCount());
      }
    }
  }

  static void viewsAreThoseThatCallsTake() {
    try (Pool pool = new Pool(blocks(20)); Actor actor = Actor.begin(pool)) {
      actor.append(30);
      int[][] before = actor.positions();
      actor.sequence.evict(List.of(actor.cached.view(0), actor.cached.view(1)), pool.workspace);
      actor.cached.fit(actor.sequence);
      actor.follow(before);
      actor.check();
      Check.equal(2L * (20 - 3), pool.cache.usage().freeCount());
    }
  }

  /** KIVI's cache: keys in groups, and the last rows in f16. */
  static void lastRowsAreNotQuantized() {
    Geometry geometry = Geometry.builder().layers(LAYERS).queryHeads(Caches.QH).kvHeads(KVH)
        .headDim(D).queryType(DType.F32).keyType(DType.U8).valueType(DType.U8).maxTokens(N).build();
    PagedCacheOptions options =
        PagedCacheOptions.of(10).withGroupTokens(4).withRecentTokens(3).withRecentDType(DType.F16);
    try (Context context = Context.create();
        Plan plan = context.newPlan(geometry, Policy.parse("knorm:budget=12,sink=1"));
        PagedCache cache = plan.newPagedCache(options);
        Sequence sequence = plan.newSequence()) {
      long blocks = cache.usage().bytes();
      PagedSequence cached = cache.newSequence();
      Check.equal(blocks + LAYERS * (3 + 4 - 1) * 2 * ROW * 2, cache.usage().bytes());
      FloatBuffer given = Caches.floats(20 * ROW);
      FloatBuffer values = Caches.floats(20 * ROW);
      for (int i = 0; i < 20 * ROW; ++i) {
        given.put(i, i / ROW + i % 7 / 8f);
        values.put(i, given.get(i));
      }
      Plane k = Caches.plane(given, KVH);
      Plane v = Caches.plane(values, KVH);
      cached.append(20);
      sequence.append(20);
      cached.write(List.of(PagedRows.of(0, 0, 20, k, v), PagedRows.of(1, 0, 20, k, v)));
      cached.view(1).validate(20);
      FloatBuffer got = Caches.floats(20 * ROW);
      cached.read(List.of(PagedRows.of(1, 0, 20, Caches.plane(got, KVH), null)));
      for (int i = 0; i < 20 * ROW; ++i) {
        float by = Math.abs(got.get(i) - given.get(i));
        Check.that(by <= (i < 16 * ROW ? 4 / 255f : 0), "element " + i + " is off by " + by);
      }
      cached.evict(sequence, EvictOptions.NONE, plan.workspace(Operation.EVICT).allocate());
      Check.equal(12, cached.length(0));
      cached.view(0).validate(12);
      Check.fails(KvEvictException.class,
          () -> plan.newPagedCache(options.withGroupTokens(3).withBlockSize(4)),
          "group_tokens 3 does not divide block_size 4");
      Check.fails(IllegalArgumentException.class, () -> options.withGroupTokens(-1),
          "groupTokens is negative");
      Check.fails(IllegalArgumentException.class,
          () -> options.withRecentTokens(-1).withRecentDType(DType.F16), "recentTokens is negative");
      cached.close();
    }
  }

  static void errorsSayWhatIsWrong() {
    try (Pool pool = new Pool(blocks(4)); Actor actor = Actor.begin(pool)) {
      actor.append(9);
      Class<KvEvictException> failed = KvEvictException.class;
      Check.fails(failed, () -> pool.plan.newPagedCache(blocks(0)), "INVALID_ARGUMENT", "n_blocks 0");
      Check.fails(failed, () -> pool.plan.pagedCacheBytes(blocks(1).withBlockSize(65537)),
          "block_size 65537");
      Check.fails(failed, () -> actor.cached.append(99), "n_tokens 99");
      Check.fails(failed, () -> actor.cached.append(25), "OUT_OF_MEMORY", "needs 12 blocks");
      Check.fails(failed, () -> actor.cached.length(2), "layer");
      Check.fails(failed, () -> actor.cached.view(-1), "layer");
      Check.fails(failed, () -> actor.cached.evict(actor.sequence,
          EvictOptions.NONE.withUndo(pool.workspace), pool.workspace), "undo");
      actor.sequence.append(1);
      Check.fails(failed, () -> actor.cached.fit(actor.sequence), "10 slots");
      Check.fails(failed,
          () -> actor.cached.evict(actor.sequence, EvictOptions.NONE, pool.workspace),
          "holds 9 rows");
      FloatBuffer memory = Caches.floats(ROW);
      Plane rows = Caches.plane(memory, KVH);
      Check.fails(failed, () -> actor.cached.write(
          List.of(PagedRows.of(0, 0, 1, rows, null), PagedRows.of(1, 9, 1, rows, null))),
          "rows[1]: first_slot 9");
      Class<IllegalArgumentException> wrong = IllegalArgumentException.class;
      Check.fails(wrong, () -> actor.cached.write(List.of(PagedRows.of(0, 0, 2, rows, null))), "k ");
      Plane readOnly = Caches.plane(memory.asReadOnlyBuffer(), KVH);
      Check.fails(wrong, () -> actor.cached.read(List.of(PagedRows.of(0, 0, 1, readOnly, null))),
          "read-only");
      Check.fails(wrong, () -> actor.cached.append(-1), "tokenCount is negative");
      Check.fails(IllegalStateException.class, () -> Batch.evictPaged(List.of(
          Batch.PagedEviction.of(actor.cached, actor.sequence),
          Batch.PagedEviction.of(actor.cached, actor.sequence)), pool.workspace), "in use");
      Check.equal(List.of(), Batch.evictPaged(List.of(), null));
      actor.cached.write(List.of());
      actor.cached.fork().close();
    }
  }

  static void closesInAnyOrder() {
    Pool pool = new Pool(blocks(20));
    Actor actor = Actor.begin(pool);
    View view = actor.cached.view(0);
    pool.cache.close();
    pool.cache.close();
    Class<IllegalStateException> closed = IllegalStateException.class;
    Check.fails(closed, pool.cache::usage, "this PagedCache is closed");
    Check.fails(closed, pool.cache::newSequence, "this PagedCache is closed");
    pool.plan.close();
    actor.append(20); // it keeps what it was made from
    PagedSequence fork = actor.cached.fork();
    actor.check();
    actor.close();
    actor.cached.close();
    Check.equal(20, fork.length(1));
    fork.close();
    List<Check.Code> uses = List.of(() -> actor.cached.append(1), () -> actor.cached.truncate(0),
        () -> actor.cached.length(0), () -> actor.cached.view(0), () -> actor.cached.own(0),
        () -> actor.cached.write(List.of()), () -> actor.cached.read(List.of()),
        () -> actor.cached.fork(), () -> actor.cached.fit(actor.sequence),
        () -> Batch.evictPaged(
            List.of(Batch.PagedEviction.of(actor.cached, actor.sequence)), pool.workspace));
    uses.forEach(use -> Check.fails(closed, use, "this PagedSequence is closed"));
    Check.fails(closed, () -> view.validate(0), "this View is closed");
    pool.close();
  }

  static void memoryOfTheCallersHoldsTheBlocks() {
    try (Context context = Context.create(); Plan plan = Caches.plan(context, LAYERS, N, "none")) {
      int bytes = (int) plan.pagedCacheBytes(blocks(3));
      ByteBuffer memory = Caches.bytes(bytes + 256).alignedSlice(256).limit(bytes);
      try (Pool pool = new Pool(blocks(3).withMemory(memory)); Actor actor = Actor.begin(pool)) {
        actor.append(12);
        actor.check();
        ByteBuffer copy = memory.duplicate();
        boolean any = false;
        while (copy.hasRemaining()) {
          any |= copy.get() != 0;
        }
        Check.that(any, "the blocks are elsewhere");
      }
      Check.fails(KvEvictException.class,
          () -> plan.newPagedCache(blocks(3).withMemory(memory.duplicate().limit(bytes - 1))),
          "memory_bytes");
    }
  }

  static void leftToTheCollector() throws InterruptedException {
    try (Pool pool = new Pool(blocks(64))) {
      for (int i = 0; i < 8; ++i) {
        PagedSequence sequence = pool.cache.newSequence();
        sequence.append(10);
        sequence.fork().view(1);
      }
      for (int i = 0; pool.cache.usage().sequenceCount() > 0 && i < 120_000; ++i) {
        System.gc();
        Thread.sleep(5);
      }
      Check.equal(0, pool.cache.usage().sequenceCount());
      Check.equal(128L, pool.cache.usage().freeCount());
    }
  }
}
