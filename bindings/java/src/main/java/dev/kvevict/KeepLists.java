package dev.kvevict;

import java.nio.IntBuffer;

/**
 * The slots of a layer to keep: one list that all KV heads share, or one for each, every list
 * with a count of its own. Immutable; only arrays are copied.
 */
public final class KeepLists extends KeepListsFields<KeepLists> {
  private final Numbers slots;
  private Numbers counts; // null: all are count

  private KeepLists(int listCount, int count, Numbers slots) {
    this.listCount = Memory.count(listCount, "listCount");
    this.count = Memory.count(count, "count");
    this.slots = slots;
  }

  /**
   * Lists in a buffer, on the CPU.
   *
   * @param slots [listCount, count], from the position on; direct, in native order
   * @param listCount 1 or the view's KV heads
   * @param count slots in every list; with counts, the most of any
   * @return the lists
   */
  public static KeepLists of(IntBuffer slots, int listCount, int count) {
    return new KeepLists(listCount, count, Numbers.of(slots, "slots"));
  }

  /**
   * Lists of the same length with a copy of an array's slots, to read from, on the CPU.
   *
   * @param listCount 1 or the view's KV heads
   * @param slots [listCount, slots per list]
   * @return the lists
   */
  public static KeepLists of(int listCount, int... slots) {
    if (listCount <= 0 || slots.length % listCount != 0) {
      throw new IllegalArgumentException(
          slots.length + " slots are not " + listCount + " lists of the same length");
    }
    return of(Memory.allocateInts(slots.length).put(0, slots), listCount, slots.length / listCount);
  }

  /**
   * Lists at an address.
   *
   * @param address address of i32 [listCount, count] on the context's device; 0 to ask for sizes
   * @param length elements there
   * @param listCount 1 or the view's KV heads
   * @param count slots in every list; with counts, the most of any
   * @return the lists
   */
  public static KeepLists at(long address, long length, int listCount, int count) {
    return new KeepLists(listCount, count, Numbers.at(address, length, "length"));
  }

  /**
   * The same lists with counts of their own, on the CPU.
   *
   * @param each slots of each list, at most the count; direct, in native order
   * @return the lists
   */
  public KeepLists withCounts(IntBuffer each) {
    KeepLists next = next();
    next.counts = Numbers.of(each, "each");
    return next;
  }

  /**
   * The same lists with counts of their own, at an address.
   *
   * @param each address of u32 [listCount], at most the count, on the context's device
   * @return the lists
   */
  public KeepLists withCounts(long each) {
    KeepLists next = next();
    next.counts = Numbers.at(each, listCount, "listCount");
    return next;
  }

  /** Writes the lists at an offset; they are reachable as long as this object. */
  void write(Device device, boolean written, Struct out, int offset) {
    fill(out, offset)
        .putLong(offset + Abi.KeepLists.SLOTS,
            written ? slots.output(device, "slots") : slots.input(device, "slots"))
        .putLong(offset + Abi.KeepLists.SLOTS_LEN, slots.length)
        .putLong(offset + Abi.KeepLists.COUNTS, Numbers.each(counts, device, listCount, "counts"));
  }
}
