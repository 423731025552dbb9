package dev.kvevict;

import java.nio.ByteBuffer;
import java.util.List;

/** Paged caches end in any order, and are left to the collector. */
final class PagedCacheTest {
  private static final int LAYERS = 2;
  private static final int N = 64;
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

  static void closesInAnyOrder() {
    Pool pool = new Pool(blocks(20));
    PagedSequence cached = pool.cache.newSequence();
    Sequence sequence = pool.plan.newSequence();
    View view = cached.view(0);
    pool.cache.close();
    pool.cache.close();
    Class<IllegalStateException> closed = IllegalStateException.class;
    Check.fails(closed, pool.cache::usage, "this PagedCache is closed");
    Check.fails(closed, pool.cache::newSequence, "this PagedCache is closed");
    pool.plan.close();
    cached.append(20); // it keeps what it was made from
    PagedSequence fork = cached.fork();
    cached.close();
    cached.close();
    Check.equal(20, fork.length(1));
    fork.close();
    List<Check.Code> uses = List.of(() -> cached.append(1), () -> cached.truncate(0),
        () -> cached.length(0), () -> cached.view(0), () -> cached.own(0),
        () -> cached.write(List.of()), () -> cached.read(List.of()),
        () -> cached.fork(), () -> cached.fit(sequence),
        () -> Batch.evictPaged(
            List.of(Batch.PagedEviction.of(cached, sequence)), pool.workspace));
    uses.forEach(use -> Check.fails(closed, use, "this PagedSequence is closed"));
    Check.fails(closed, () -> view.validate(0), "this View is closed");
    sequence.close();
    pool.close();
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
