package dev.kvevict;

import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;

/** Edits are as if the cache had been computed from the edited text. */
final class EditTest {
  private static final int LAYERS = 2;
  private static final int ROWS = 44; // of the caches' memory, of 48 that a plan allows
  private static final int ROW = Caches.KVH * Caches.D;
  private static final float[] FREQUENCIES = {1, 0.25f, 0.0625f}; // two elements do not rotate
  private static final int GAP = -1; // a position without a token

  private EditTest() {}

  /**
   * A text with its cache, and a naive model of it: its tokens in order. A cache in blocks is copied to
   * keys and values before they are looked at.
   */
  private static final class Edited implements AutoCloseable {
    final Context context = Context.create();
    final Plan plan = context.newPlan(
        Geometry.builder().layers(LAYERS).queryHeads(Caches.QH).kvHeads(Caches.KVH).headDim(Caches.D)
            .maxTokens(48).build().withRope(RopeLayout.HALF, FREQUENCIES), Policy.parse("none"));
    final PagedCache cache = plan.newPagedCache(PagedCacheOptions.of(30).withBlockSize(4));
    final Sequence sequence = plan.newSequence();
    final PagedSequence cached; // null: the rows lie in views
    final List<FloatBuffer> keys = new ArrayList<>();
    final List<FloatBuffer> values = new ArrayList<>();
    final List<View> views = new ArrayList<>();
    List<Integer> text;
    int newest;
    int edits;

    Edited(boolean paged) {
      for (int layer = 0; layer < LAYERS; ++layer) {
        keys.add(Caches.floats(ROWS * ROW));
        values.add(Caches.floats(ROWS * ROW));
        views.add(Caches.view(keys.get(layer), values.get(layer)));
      }
      cached = paged ? cache.newSequence() : null;
      if (paged) {
        cached.append(40);
      }
      sequence.append(40);
      text = fresh(40);
      write(0, 40);
    }

    List<Integer> fresh(int n) {
      List<Integer> tokens = new ArrayList<>();
      for (int i = 0; i < n; ++i) {
        tokens.add(newest++);
      }
      return tokens;
    }

    /** Writes the rows of the n tokens from a position on, as an engine does. */
    void write(int first, int n) {
      for (int layer = 0; n > 0 && layer < LAYERS; ++layer) {
        int slot = sequence.slotOfPosition(layer, 0, first);
        for (int i = 0; i < n * ROW; ++i) {
          int position = first + i / ROW;
          int token = text.get(position);
          int head = i / Caches.D % Caches.KVH;
          int element = i % Caches.D;
          keys.get(layer).put(slot * ROW + i, (float) key(token, layer, head, position)[element]);
          values.get(layer).put(slot * ROW + i, value(token, layer, head, element));
        }
        if (cached != null) {
          cached.write(List.of(PagedRows.of(layer, slot, n,
              plane(keys.get(layer), slot), plane(values.get(layer), slot))));
        }
      }
    }

    void call(Edit edit) {
      if (cached == null) {
        sequence.edit(views, edit);
      } else {
        cached.edit(sequence, edit);
      }
    }

    void replace(int first, int end, int newCount) {
      call(Edit.replace(first, end, newCount));
      put(first, end, fresh(newCount), first, newCount);
    }

    /** New tokens at the start of the span, and a gap behind them. */
    void keep(int first, int end, int newCount) {
      call(Edit.replace(first, end, newCount).withPositions(EditPositions.KEEP));
      List<Integer> tokens = fresh(newCount);
      while (tokens.size() < end - first) {
        tokens.add(GAP);
      }
      put(first, end, tokens, first, newCount);
    }

    void move(int first, int end, int to) {
      call(Edit.move(first, end, to));
      put(first, end, new ArrayList<>(text.subList(first, end)), to, 0);
    }

    private void put(int first, int end, List<Integer> tokens, int to, int newCount) {
      ++edits;
      text.subList(first, end).clear();
      text.addAll(to, tokens);
      write(to, newCount);
      check();
    }

    /** Compares every row and position with the model. */
    void check() {
      Check.equal(text.size(), sequence.logicalLength());
      for (int layer = 0; layer < LAYERS; ++layer) {
        int stored = sequence.storedLength(layer);
        if (cached != null) {
          Check.equal(stored, cached.length(layer));
          cached.read(List.of(PagedRows.of(
              layer, 0, stored, plane(keys.get(layer), 0), plane(values.get(layer), 0))));
        }
        int next = 0;
        for (int position = 0; position < text.size(); ++position) {
          int slot = sequence.slotOfPosition(layer, 1, position);
          if (text.get(position) == GAP) {
            Check.equal(-1, slot);
            continue;
          }
          Check.equal(next++, slot);
          Check.equal(position, sequence.positionOfSlot(layer, 1, slot));
          checkRow(layer, slot, position);
        }
        Check.equal(next, stored);
      }
    }

    /**
     * A rotation rounds cosine, sine and products by at most 3e-7 of a pair's length, and its result by
     * half a unit; the first row is rounded too.
     */
    private void checkRow(int layer, int slot, int position) {
      int token = text.get(position);
      for (int head = 0; head < Caches.KVH; ++head) {
        double[] key = key(token, layer, head, position);
        double[] raw = key(token, layer, head, 0);
        for (int i = 0; i < Caches.D; ++i) {
          int at = slot * ROW + head * Caches.D + i;
          double radius = i < 6 ? Math.hypot(raw[i % 3], raw[i % 3 + 3]) : Math.abs(raw[i]);
          double bound = 2 * radius * (edits * (3e-7 + 0x1p-24) + 0x1p-23);
          double got = keys.get(layer).get(at);
          String where = "layer " + layer + ", slot " + slot + ", head " + head + ", element " + i + ": ";
          Check.that(Math.abs(got - key[i]) <= bound, where + "key " + got + ", not " + key[i]);
          Check.that(values.get(layer).get(at) == value(token, layer, head, i),
              where + "not the value of token " + token);
        }
      }
    }

    @Override
    public void close() {
      if (cached != null) {
        cached.close();
      }
      sequence.close();
      cache.close();
      plan.close();
      context.close();
    }
  }

  /** A token's key at a position. */
  private static double[] key(int token, int layer, int head, int position) {
    Random random = new Random(token * 16 + layer * 4 + head);
    double[] key = new double[Caches.D];
    Arrays.setAll(key, i -> random.nextGaussian());
    for (int f = 0; f < 3; ++f) {
      double re = key[f];
      double im = key[f + 3];
      double angle = position * (double) FREQUENCIES[f];
      key[f] = re * Math.cos(angle) - im * Math.sin(angle);
      key[f + 3] = re * Math.sin(angle) + im * Math.cos(angle);
    }
    return key;
  }

  private static float value(int token, int layer, int head, int i) {
    return token * 64 + layer * 32 + head * 16 + i;
  }

  private static Plane plane(FloatBuffer data, int slot) {
    return Caches.plane(data.slice(slot * ROW, data.capacity() - slot * ROW), Caches.KVH);
  }

  static void areAsIfTheTextHadBeenComputedSo() {
    for (boolean paged : new boolean[] {false, true}) {
      try (Edited e = new Edited(paged)) {
        e.check();
        e.replace(5, 12, 0);
        e.replace(9, 9, 4);
        e.move(20, 26, 3);
        e.move(1, 8, 25);
        e.replace(30, 33, 7);
        e.keep(10, 16, 2);
        e.replace(11, 20, 1); // with a part of the gap
        Check.that(e.sequence.exactPrefix() <= 1, e.sequence.exactPrefix() + " tokens are exact");
      }
    }
  }

  static void leaveForksAsTheyAre() {
    try (Edited e = new Edited(true);
        PagedSequence cached = e.cached.fork();
        Sequence sequence = e.sequence.fork()) {
      cached.edit(sequence, Edit.replace(3, 20, 0));
      Check.equal(23, sequence.logicalLength());
      e.check();
    }
  }

  static void changeNothingIfTheyDoNotFit() {
    Class<IllegalArgumentException> invalid = IllegalArgumentException.class;
    Check.fails(invalid, () -> Edit.replace(-1, 6, 0), "first is negative: -1");
    Check.fails(invalid, () -> Edit.replace(1, 6, -3), "newCount is negative: -3");
    Check.fails(invalid, () -> Edit.move(1, 6, -2), "to is negative: -2");
    Check.fails(NullPointerException.class, () -> Edit.move(1, 6, 2).withPositions(null), "positions");
    for (boolean paged : new boolean[] {false, true}) {
      try (Edited e = new Edited(paged)) {
        refuses(e, Edit.replace(7, 6, 0), "first 7", "end 6");
        refuses(e, Edit.replace(7, 41, 0), "end 41", "40 tokens");
        refuses(e, Edit.move(3, 5, 39), "to 39 + 2", "40");
        refuses(e, Edit.replace(3, 5, 3).withPositions(EditPositions.KEEP), "n_new 3 > 2");
        refuses(e, Edit.move(3, 5, 1).withPositions(EditPositions.KEEP), "positions keep");
        e.check();
      }
    }
  }

  private static void refuses(Edited e, Edit edit, String... parts) {
    Check.equal(Status.INVALID_ARGUMENT,
        Check.fails(KvEvictException.class, () -> e.call(edit), parts).status());
  }

  static void needRoomInTheViews() {
    Class<IllegalArgumentException> invalid = IllegalArgumentException.class;
    try (Edited e = new Edited(false)) {
      Check.fails(invalid, () -> e.call(Edit.replace(9, 9, 5)), "holds 44 rows of 2 heads, not 45");
      e.check();
      e.replace(9, 9, 4); // all rows are in use
      e.replace(20, 26, 6); // and may be replaced
      Edit none = Edit.replace(0, 0, 0);
      Check.fails(invalid, () -> e.sequence.edit(e.views.subList(0, 1), none), "1 views for 2 layers");
      Check.fails(NullPointerException.class,
          () -> e.sequence.edit(Arrays.asList(e.views.get(0), null), none), "views[1]");
      e.check();
    }
  }

  static void failOnceClosed() {
    Edit none = Edit.replace(0, 0, 0);
    Edited e = new Edited(true);
    e.sequence.close();
    Class<IllegalStateException> closed = IllegalStateException.class;
    Check.fails(closed, () -> e.sequence.edit(e.views, none), "this Sequence is closed");
    Check.fails(closed, () -> e.call(none), "this Sequence is closed");
    e.cached.close();
    Check.fails(closed, () -> e.call(none), "this PagedSequence is closed");
    e.close();
  }
}
