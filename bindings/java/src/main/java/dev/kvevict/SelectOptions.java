package dev.kvevict;

import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.Objects;

/**
 * What {@link Context#select} chooses from, and what must stay. Immutable. {@link
 * Plan#selection} gives what a plan's policy wants.
 */
public final class SelectOptions implements Cloneable {
  private int tokenCount;
  private Numbers tokenCounts;
  private Numbers scores;
  private int rowCount;
  private Reduce reduce = Reduce.MEAN;
  private int sink;
  private int recent;
  private Tie tie = Tie.LOWER_POSITION;
  private int selectBlock;
  private IntBuffer slots;
  private Struct ranges; // null for none
  private int rangeCount;

  private SelectOptions() {}

  /**
   * Options without scores: every list keeps its first slots.
   *
   * @param tokenCount slots held, at least 1
   * @return the options
   */
  public static SelectOptions of(int tokenCount) {
    SelectOptions options = new SelectOptions();
    options.tokenCount = Memory.count(tokenCount, "tokenCount");
    return options;
  }

  /**
   * Sets the slots held by each list's heads if they differ, on the CPU.
   *
   * @param each slots of a list, at most tokenCount; direct, in native order
   * @return these options with the counts
   */
  public SelectOptions withTokenCounts(IntBuffer each) {
    SelectOptions next = copy();
    next.tokenCounts = Numbers.of(each, "each");
    return next;
  }

  /**
   * Sets the slots held by each list's heads if they differ, at an address.
   *
   * @param each address of u32 [lists], at most tokenCount, on the context's device
   * @return these options with the counts
   */
  public SelectOptions withTokenCounts(long each) {
    SelectOptions next = copy();
    next.tokenCounts = Numbers.at(each, Integer.MAX_VALUE, "each");
    return next;
  }

  /**
   * Sets the scores, on the CPU.
   *
   * @param buffer f32 [rows, tokenCount] of any values; direct, in native order
   * @return these options with the scores
   */
  public SelectOptions withScores(FloatBuffer buffer) {
    SelectOptions next = copy();
    next.scores = Numbers.of(buffer, "buffer");
    return next;
  }

  /**
   * Sets the scores, at an address.
   *
   * @param address address of f32 [rows, tokenCount] on the context's device
   * @param length elements
   * @return these options with the scores
   */
  public SelectOptions withScores(long address, long length) {
    SelectOptions next = copy();
    next.scores = Numbers.at(address, length, "length");
    return next;
  }

  /**
   * Rows of scores, where lists have several.
   *
   * @param rows a multiple of the lists: row r is list r / (rows / lists)'s; 0: one for each list
   * @param how they become one
   * @return these options with the rows
   */
  public SelectOptions withRows(int rows, Reduce how) {
    SelectOptions next = copy();
    next.rowCount = Memory.count(rows, "rows");
    next.reduce = Objects.requireNonNull(how, "how");
    return next;
  }

  /**
   * First slots that must stay.
   *
   * @param n the number
   * @return these options with the sinks
   */
  public SelectOptions withSink(int n) {
    SelectOptions next = copy();
    next.sink = Memory.count(n, "n");
    return next;
  }

  /**
   * Last slots that must stay.
   *
   * @param n the number
   * @return these options with the recent slots
   */
  public SelectOptions withRecent(int n) {
    SelectOptions next = copy();
    next.recent = Memory.count(n, "n");
    return next;
  }

  /**
   * Sets which of two equal scores survives; without scores, whether the first or last slots do.
   *
   * @param which the rule
   * @return these options with the rule
   */
  public SelectOptions withTie(Tie which) {
    SelectOptions next = copy();
    next.tie = Objects.requireNonNull(which, "which");
    return next;
  }

  /**
   * Sets the slots of a block, which stays or goes as a whole.
   *
   * @param n the slots of a block; 0: 1
   * @return these options with the blocks
   */
  public SelectOptions withSelectBlock(int n) {
    SelectOptions next = copy();
    next.selectBlock = Memory.count(n, "n");
    return next;
  }

  /**
   * Slots that must stay.
   *
   * @param protectedSlots strictly ascending
   * @return these options with the slots
   */
  public SelectOptions withProtected(int... protectedSlots) {
    SelectOptions next = copy();
    next.slots = Memory.allocateInts(protectedSlots.length).put(0, protectedSlots);
    return next;
  }

  /**
   * Slots that go later or sooner than others.
   *
   * @param tokens their slots
   * @return these options with the ranges
   */
  public SelectOptions withRanges(TokenRange... tokens) {
    SelectOptions next = copy();
    next.ranges = TokenRange.write(tokens);
    next.rangeCount = tokens.length;
    return next;
  }

  private SelectOptions copy() {
    try {
      return (SelectOptions) clone();
    } catch (CloneNotSupportedException e) {
      throw new AssertionError(e);
    }
  }

  static SelectOptions read(Struct in, int tokenCount) {
    return of(tokenCount)
        .withRows(in.intAt(Abi.SelectOptions.N_ROWS),
            in.enumAt(Abi.SelectOptions.REDUCE, Reduce.class))
        .withSink(in.intAt(Abi.SelectOptions.N_SINK))
        .withRecent(in.intAt(Abi.SelectOptions.N_RECENT))
        .withTie(in.enumAt(Abi.SelectOptions.TIE, Tie.class))
        .withSelectBlock(in.intAt(Abi.SelectOptions.SELECT_BLOCK));
  }

  /** Writes these options at the begin of zeroed memory; listCount is the keep lists'. */
  void write(Device device, int listCount, Struct out) {
    boolean any = slots != null && slots.hasRemaining();
    out.putInt(Abi.SelectOptions.STRUCT_SIZE, Abi.SelectOptions.SIZEOF)
        .putInt(Abi.SelectOptions.N_TOKENS, tokenCount)
        .putLong(Abi.SelectOptions.TOKEN_COUNTS,
            Numbers.each(tokenCounts, device, listCount, "tokenCounts"))
        .putLong(Abi.SelectOptions.SCORES, scores == null ? 0 : scores.input(device, "scores"))
        .putLong(Abi.SelectOptions.SCORES_LEN, scores == null ? 0 : scores.length)
        .putInt(Abi.SelectOptions.N_ROWS, rowCount)
        .putEnum(Abi.SelectOptions.REDUCE, reduce)
        .putInt(Abi.SelectOptions.N_SINK, sink)
        .putInt(Abi.SelectOptions.N_RECENT, recent)
        .putEnum(Abi.SelectOptions.TIE, tie)
        .putInt(Abi.SelectOptions.SELECT_BLOCK, selectBlock)
        .putLong(Abi.SelectOptions.PROTECTED_SLOTS, any ? Memory.address(slots, "slots") : 0)
        .putLong(Abi.SelectOptions.PROTECTED_SLOTS_LEN, any ? slots.remaining() : 0)
        .putLong(Abi.SelectOptions.RANGES, Struct.addressOrNull(ranges))
        .putLong(Abi.SelectOptions.RANGES_LEN, rangeCount);
  }
}
