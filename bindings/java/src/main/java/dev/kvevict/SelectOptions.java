package dev.kvevict;

import java.nio.FloatBuffer;
import java.nio.IntBuffer;

/**
 * What {@link Context#select} chooses from, and what must stay. Immutable. {@link
 * Plan#selection} gives what a plan's policy wants.
 */
public final class SelectOptions extends SelectOptionsFields<SelectOptions> {
  private Numbers tokenCounts;
  private Numbers scores;
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
    SelectOptions next = next();
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
    SelectOptions next = next();
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
    SelectOptions next = next();
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
    SelectOptions next = next();
    next.scores = Numbers.at(address, length, "length");
    return next;
  }

  /**
   * Slots that must stay.
   *
   * @param protectedSlots strictly ascending
   * @return these options with the slots
   */
  public SelectOptions withProtected(int... protectedSlots) {
    SelectOptions next = next();
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
    SelectOptions next = next();
    next.ranges = TokenRange.write(tokens);
    next.rangeCount = tokens.length;
    return next;
  }

  /** Writes these options at the begin of zeroed memory; listCount is the keep lists'. */
  void write(Device device, int listCount, Struct out) {
    boolean any = slots != null && slots.hasRemaining();
    fill(out, 0)
        .putLong(Abi.SelectOptions.TOKEN_COUNTS,
            Numbers.each(tokenCounts, device, listCount, "tokenCounts"))
        .putLong(Abi.SelectOptions.SCORES, scores == null ? 0 : scores.input(device, "scores"))
        .putLong(Abi.SelectOptions.SCORES_LEN, scores == null ? 0 : scores.length)
        .putLong(Abi.SelectOptions.PROTECTED_SLOTS, any ? Memory.address(slots, "slots") : 0)
        .putLong(Abi.SelectOptions.PROTECTED_SLOTS_LEN, any ? slots.remaining() : 0)
        .putLong(Abi.SelectOptions.RANGES, Struct.addressOrNull(ranges))
        .putLong(Abi.SelectOptions.RANGES_LEN, rangeCount);
  }
}
