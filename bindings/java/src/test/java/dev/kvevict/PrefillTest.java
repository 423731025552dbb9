package dev.kvevict;

import static dev.kvevict.Caches.D;
import static dev.kvevict.Caches.KVH;
import static dev.kvevict.Caches.QH;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.List;

/** Prompts in chunks, over views and blocks. */
final class PrefillTest {
  private static final int LAYERS = 2;
  private static final int N = 64;
  private static final int ROW = KVH * D;

  private PrefillTest() {}

  /** Runs in a chunk and may fail. */
  private interface At {
    void of(int firstToken);
  }

  /** A model, whose caches are views or blocks. */
  private static final class Model implements AutoCloseable {
    final Context context = Context.create();
    final Plan plan = Caches.plan(context, LAYERS, N, "snapkv:budget=12,window=4,sink=1,recent=4");
    final ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
    final Sequence sequence = plan.newSequence();
    final List<FloatBuffer> keys = new ArrayList<>();
    final List<View> views = new ArrayList<>();
    final PagedCache cache;
    final PagedSequence cached;
    final List<String> chunks = new ArrayList<>();
    At at = firstToken -> {};

    Model(boolean paged) {
      sequence.beginObserving();
      cache = paged ? plan.newPagedCache(PagedCacheOptions.of(10).withBlockSize(4)) : null;
      cached = paged ? cache.newSequence() : null;
      for (int layer = 0; layer < LAYERS; ++layer) {
        keys.add(Caches.floats(N * ROW));
        views.add(Caches.view(keys.get(layer), Caches.floats(N * ROW)));
      }
    }

    void forward(Prefill.Chunk chunk) {
      forward(chunk.firstToken(), chunk.tokenCount());
    }

    void forward(int firstToken, int n) {
      chunks.add(firstToken + "+" + n);
      at.of(firstToken);
      for (int layer = 0; layer < LAYERS; ++layer) {
        FloatBuffer rows = tokens(firstToken, n, ROW, layer);
        int held = sequence.storedLength(layer, 0);
        if (cached == null) {
          keys.get(layer).put(held * ROW, rows, 0, n * ROW);
        } else {
          Check.equal(held + n, cached.length(layer));
          cached.write(List.of(PagedRows.of(layer, held, n, Caches.plane(rows, KVH),
              Caches.plane(Caches.floats(n * ROW), KVH))));
        }
        Plane queries = Caches.plane(tokens(firstToken, n, QH * D, 9), QH);
        sequence.observe(layer, queries, n, firstToken);
      }
    }

    /** Rows that do not depend on chunks. */
    private static FloatBuffer tokens(int first, int n, int row, int seed) {
      FloatBuffer all = Caches.random((first + n) * row, seed);
      return Caches.floats(n * row).put(0, all, first * row, n * row);
    }

    PrefillReport read(Prefill prompt) {
      return cached == null ? sequence.prefill(prompt, views, workspace)
                            : cached.prefill(prompt, sequence, workspace);
    }

    Prefill prompt(int tokenCount) {
      return Prefill.of(tokenCount, 8, this::forward);
    }

    @Override
    public void close() {
      if (cached != null) {
        cached.close();
        cache.close();
      }
      sequence.close();
      plan.close();
      context.close();
    }
  }

  static void whatTheModelThrowsIsThrown() {
    for (boolean paged : new boolean[] {false, true}) {
      try (Model model = new Model(paged)) {
        RuntimeException wrong = new UnsupportedOperationException("no such token");
        model.at = first -> {
          System.gc(); // what native code holds stays
          if (first == 8) {
            throw wrong;
          }
        };
        Exception thrown = Check.fails(UnsupportedOperationException.class,
            () -> model.read(model.prompt(30).withEvictEachChunk(true)));
        Check.that(thrown == wrong, "another exception");
        Check.equal(8, model.sequence.logicalLength());
        model.at = first -> {
          throw new StackOverflowError("an error");
        };
        Check.fails(StackOverflowError.class, () -> model.read(model.prompt(22)));
        model.at = first -> {}; // and the rest may be read
        Check.equal(3, model.read(model.prompt(22).withEvictEachChunk(true)).chunks());
      }
    }
  }

  static void theLibrarysErrorsInTheModelAreThrown() {
    try (Model model = new Model(false)) {
      model.at = first -> model.sequence.storedLength(7, 0);
      Check.fails(KvEvictException.class, () -> model.read(model.prompt(30)), "layer 7");
    }
  }

  static void theModelUsesTheSequenceAlone() {
    try (Model model = new Model(false)) {
      model.at = first -> Check.fails(IllegalStateException.class,
          () -> model.read(model.prompt(1)), "reads a prompt already");
      Check.equal(1, model.read(model.prompt(8)).chunks());
    }
    try (Model model = new Model(true)) {
      model.at = first -> model.sequence.close();
      Check.fails(
          IllegalStateException.class, () -> model.read(model.prompt(8)), "Sequence is closed");
    }
  }

  /** Views that the model changes are read again, and have room for what it wrote. */
  static void viewsAreReadAgain() {
    try (Model model = new Model(false)) {
      View small = Caches.view(Caches.floats(12 * ROW), Caches.floats(12 * ROW));
      model.at = first -> {
        if (first == 8) {
          model.views.set(1, small);
        }
      };
      Check.fails(IllegalArgumentException.class,
          () -> model.read(model.prompt(30).withEvictEachChunk(true)));
      Check.equal(8, model.sequence.logicalLength());
    }
  }

  static void errorsSayWhatIsWrong() {
    try (Model model = new Model(false)) {
      Check.fails(IllegalArgumentException.class, () -> Prefill.of(-1, 1, model::forward), "-1");
      Check.fails(NullPointerException.class, () -> Prefill.of(1, 1, null), "forward");
      Check.fails(KvEvictException.class,
          () -> model.read(Prefill.of(20, 0, model::forward)), "chunk 0 < 1");
      Check.fails(KvEvictException.class, () -> model.read(model.prompt(N + 1)), "65");
      Check.fails(IllegalArgumentException.class,
          () -> model.sequence.prefill(model.prompt(1), List.of(), model.workspace),
          "0 views for 2 layers");
      Check.equal(List.of(), model.chunks);
    }
  }
}
