package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Objects;
import java.util.function.Function;

/**
 * Calls for many sequences of one context, of any lengths and plans. No sequence may come up
 * twice. They do to each, in order and to the same bytes, what {@link Sequence}'s method does. All are
 * checked before the first one changes. An error's message begins with the item that it is about.
 */
public final class Batch {
  private Batch() {}

  /** How many tokens a sequence appends. Immutable. */
  public static final class Tokens extends SequenceTokensFields<Tokens> {
    private final Sequence sequence;

    private Tokens(Sequence sequence, int tokenCount) {
      this.sequence = Objects.requireNonNull(sequence, "sequence");
      this.tokenCount = Memory.count(tokenCount, "tokenCount");
    }

    /**
     * An item.
     *
     * @param sequence the sequence
     * @param tokenCount the number of tokens
     * @return the item
     */
    public static Tokens of(Sequence sequence, int tokenCount) {
      return new Tokens(sequence, tokenCount);
    }
  }

  /** The logical length that a sequence returns to. Immutable. */
  public static final class Length extends SequenceLengthFields<Length> {
    private final Sequence sequence;

    private Length(Sequence sequence, int newLength) {
      this.sequence = Objects.requireNonNull(sequence, "sequence");
      this.newLength = Memory.count(newLength, "newLength");
    }

    /**
     * An item.
     *
     * @param sequence the sequence
     * @param newLength the length to return to
     * @return the item
     */
    public static Length of(Sequence sequence, int newLength) {
      return new Length(sequence, newLength);
    }
  }

  /** The observations of a sequence, for {@link Sequence#observe(List, int, int)}. */
  public static final class Observations extends SequenceObservationsFields<Observations> {
    private final Sequence sequence;
    private final SignalInputs[] layers;

    private Observations(
        Sequence sequence, SignalInputs[] layers, int rowCount, int firstPosition) {
      this.sequence = Objects.requireNonNull(sequence, "sequence");
      this.layers = layers;
      this.rowCount = Memory.count(rowCount, "rowCount");
      this.firstPosition = firstPosition;
    }

    /**
     * An item.
     *
     * @param sequence the sequence
     * @param layers what each layer shows; null for nothing
     * @param rowCount rows of each layer
     * @param firstPosition position of row 0, or {@link Sequence#POSITION_NEXT}
     * @return the item
     */
    public static Observations of(
        Sequence sequence, List<SignalInputs> layers, int rowCount, int firstPosition) {
      return new Observations(
          sequence, layers.toArray(new SignalInputs[0]), rowCount, firstPosition);
    }
  }

  /** The arguments of {@link Sequence#evict} for a sequence. Immutable. */
  public static final class Eviction {
    private final Sequence sequence;
    private final List<View> views;
    private final EvictOptions options;

    private Eviction(Sequence sequence, List<View> views, EvictOptions options) {
      this.sequence = Objects.requireNonNull(sequence, "sequence");
      this.views = views;
      this.options = Objects.requireNonNull(options, "options");
    }

    /**
     * An item without options.
     *
     * @param sequence the sequence
     * @param views one per layer; null for layers without a full cache
     * @return the item
     */
    public static Eviction of(Sequence sequence, List<View> views) {
      return new Eviction(
          sequence, Collections.unmodifiableList(new ArrayList<>(views)), EvictOptions.NONE);
    }

    /**
     * Sets what it is told beside the policy.
     *
     * @param evictOptions protected positions, scores, queries
     * @return this item with the options
     */
    public Eviction withOptions(EvictOptions evictOptions) {
      return new Eviction(sequence, views, evictOptions);
    }
  }

  /**
   * {@link Sequence#append(int, long)} for each item.
   *
   * @param items tokens to append
   * @param stream a CUstream; ignored on the CPU
   */
  public static void append(List<Tokens> items, long stream) {
    int size = Abi.SequenceTokens.SIZEOF;
    try (Entered all = new Entered(items, item -> item.sequence);
        Struct out = new Struct(items.size() * size)) {
      for (int i = 0; i < items.size(); ++i) {
        items.get(i).fill(out, i * size)
            .putLong(i * size + Abi.SequenceTokens.SEQUENCE, all.pointers[i]);
      }
      Native.kvevict_sequences_append(out.address, items.size(), stream);
    }
  }

  /**
   * {@link Sequence#trimTo(int, long)} for each item: a batch of speculations, each accepted up to
   * another token.
   *
   * @param items lengths to return to
   * @param stream a CUstream; ignored on the CPU
   */
  public static void trimTo(List<Length> items, long stream) {
    int size = Abi.SequenceLength.SIZEOF;
    try (Entered all = new Entered(items, item -> item.sequence);
        Struct out = new Struct(items.size() * size)) {
      for (int i = 0; i < items.size(); ++i) {
        items.get(i).fill(out, i * size)
            .putLong(i * size + Abi.SequenceLength.SEQUENCE, all.pointers[i]);
      }
      Native.kvevict_sequences_trim_to(out.address, items.size(), stream);
    }
  }

  /**
   * {@link Sequence#observe(List, int, int, long)} for each item.
   *
   * @param items rows
   * @param stream a CUstream; ignored on the CPU
   */
  public static void observe(List<Observations> items, long stream) {
    int size = Abi.SequenceObservations.SIZEOF;
    try (Entered all = new Entered(items, item -> item.sequence);
        Struct out = new Struct(items.size() * size)) {
      for (int i = 0; i < items.size(); ++i) {
        Observations item = items.get(i);
        item.sequence.arguments().writeItem(
            out, i * size, all.pointers[i], item.layers, item);
      }
      Native.kvevict_sequences_observe(out.address, items.size(), stream);
    } finally {
      Reference.reachabilityFence(items);
    }
  }

  /**
   * Scratch for {@link #evict} of sequences as long as they are now: the largest that any of them
   * needs. The scratch of their plans at maxTokens serves at any length.
   *
   * @param sequences sequences of one context
   * @return its sizes
   */
  public static Workspace workspace(List<Sequence> sequences) {
    int size = Abi.SequenceEviction.SIZEOF;
    Device device = sequences.isEmpty() ? Device.CPU : sequences.get(0).device();
    try (Entered all = new Entered(sequences, sequence -> sequence);
        Struct in = new Struct(sequences.size() * size)) {
      for (int i = 0; i < sequences.size(); ++i) {
        in.putInt(i * size + Abi.SequenceEviction.STRUCT_SIZE, size)
            .putLong(i * size + Abi.SequenceEviction.SEQUENCE, all.pointers[i]);
      }
      return Records.Workspace.of(device,
          out -> Native.kvevict_sequences_workspace(in.address, sequences.size(), out));
    }
  }

  /**
   * {@link Sequence#evict} for each item, on the CPU.
   *
   * @param items sequences and their caches
   * @param workspace see {@link #workspace}
   * @return what was done to each
   */
  public static List<EvictReport> evict(List<Eviction> items, ByteBuffer workspace) {
    Device device = items.isEmpty() ? Device.CPU : items.get(0).sequence.device();
    List<EvictReport> reports = evict(
        items, Memory.workspace(device, workspace), Memory.workspaceBytes(workspace), 0);
    Reference.reachabilityFence(workspace);
    return reports;
  }

  /**
   * {@link Sequence#evict} for each item, in one workspace. Contiguous caches of two sequences must
   * not overlap if one of them is to lose tokens.
   *
   * @param items sequences and their caches
   * @param workspace address of scratch, see {@link #workspace}
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   * @return what was done to each
   */
  public static List<EvictReport> evict(
      List<Eviction> items, long workspace, long workspaceBytes, long stream) {
    int size = Abi.SequenceEviction.SIZEOF;
    List<View.Content[]> caches = new ArrayList<>();
    try (Entered all = new Entered(items, item -> item.sequence);
        Struct out = new Struct(items.size() * size)) {
      for (int i = 0; i < items.size(); ++i) {
        Eviction item = items.get(i);
        caches.add(item.sequence.arguments().writeItem(
            out, i * size, all.pointers[i], item.views, item.options));
      }
      Native.kvevict_sequences_evict(
          out.address, items.size(), workspace, workspaceBytes, stream);
      List<EvictReport> reports = new ArrayList<>();
      for (int i = 0; i < items.size(); ++i) {
        reports.add(items.get(i).sequence.report(all.pointers[i]));
      }
      return reports;
    } finally {
      Reference.reachabilityFence(items);
      Reference.reachabilityFence(caches);
    }
  }

  /** The arguments of a paged sequence's eviction. Immutable. */
  public static final class PagedEviction {
    private final PagedSequence cached;
    private final Sequence sequence;
    private final EvictOptions options;

    private PagedEviction(PagedSequence cached, Sequence sequence, EvictOptions options) {
      this.cached = Objects.requireNonNull(cached, "cached");
      this.sequence = Objects.requireNonNull(sequence, "sequence");
      this.options = Objects.requireNonNull(options, "options");
    }

    /**
     * An item without options.
     *
     * @param cached the rows
     * @param sequence the tokens that the rows belong to
     * @return the item
     */
    public static PagedEviction of(PagedSequence cached, Sequence sequence) {
      return new PagedEviction(cached, sequence, EvictOptions.NONE);
    }

    /**
     * Sets what it is told beside the policy.
     *
     * @param evictOptions no undo: a fork made before keeps what goes
     * @return this item with the options
     */
    public PagedEviction withOptions(EvictOptions evictOptions) {
      return new PagedEviction(cached, sequence, evictOptions);
    }
  }

  /**
   * {@link PagedSequence#evict} for each item, on the CPU.
   *
   * @param items items of one cache
   * @param workspace the largest of the plans' for {@link Operation#EVICT}
   * @return what was done to each
   */
  public static List<EvictReport> evictPaged(List<PagedEviction> items, ByteBuffer workspace) {
    Device device = items.isEmpty() ? Device.CPU : items.get(0).sequence.device();
    List<EvictReport> reports = evictPaged(
        items, Memory.workspace(device, workspace), Memory.workspaceBytes(workspace), 0);
    Reference.reachabilityFence(workspace);
    return reports;
  }

  /**
   * {@link PagedSequence#evict} for each item, in one workspace. Blocks that others share are copied
   * before survivors move to them; the others hold theirs unchanged.
   *
   * @param items items of one cache
   * @param workspace address of scratch, the largest of the plans' for {@link Operation#EVICT}
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   * @return what was done to each
   */
  public static List<EvictReport> evictPaged(
      List<PagedEviction> items, long workspace, long workspaceBytes, long stream) {
    int size = Abi.PagedEviction.SIZEOF;
    try (Entered rows = new Entered(items, item -> item.cached);
        Entered all = new Entered(items, item -> item.sequence);
        Struct out = new Struct(items.size() * size)) {
      for (int i = 0; i < items.size(); ++i) {
        PagedEviction item = items.get(i);
        item.sequence.arguments().writeItem(
            out, i * size, rows.pointers[i], all.pointers[i], item.options);
      }
      Native.kvevict_paged_evict(
          out.address, items.size(), workspace, workspaceBytes, stream);
      List<EvictReport> reports = new ArrayList<>();
      for (int i = 0; i < items.size(); ++i) {
        reports.add(items.get(i).sequence.report(all.pointers[i]));
      }
      return reports;
    } finally {
      Reference.reachabilityFence(items);
    }
  }

  /** The sequences of a call. Nobody else enters them meanwhile. */
  private static final class Entered implements AutoCloseable {
    final long[] pointers;
    private final List<Handle> sequences = new ArrayList<>();

    <T> Entered(List<T> items, Function<T, Handle> sequenceOf) {
      pointers = new long[items.size()];
      try {
        for (T item : items) {
          Handle sequence = sequenceOf.apply(item);
          pointers[sequences.size()] = sequence.enterAlone();
          sequences.add(sequence);
        }
      } catch (RuntimeException e) {
        close();
        throw e;
      }
    }

    @Override
    public void close() {
      sequences.forEach(Handle::leave);
    }
  }
}
