package dev.kvevict;

import java.nio.IntBuffer;

/**
 * Which slots of a layer to keep: one list that all KV heads share, or one for each, every list
 * with a count of its own. Immutable; nothing is copied but arrays.
 */
public final class KeepLists {
  private final int nLists;
  private final int count;
  private final long stride;
  private final Numbers slots;
  private final Numbers counts; // null: all are count

  private KeepLists(int nLists, int count, long stride, Numbers slots, Numbers counts) {
    this.nLists = Memory.count(nLists, "nLists");
    this.count = Memory.count(count, "count");
    this.stride = Memory.count(stride, "stride");
    this.slots = slots;
    this.counts = counts;
  }

  /**
   * Lists in a buffer, on the CPU.
   *
   * @param slots [nLists, count], from the position on; direct, in native order
   * @param nLists 1 or the view's KV heads
   * @param count slots in every list; with counts, the most of any
   * @return the lists
   */
  public static KeepLists of(IntBuffer slots, int nLists, int count) {
    return new KeepLists(nLists, count, 0, Numbers.of(slots, "slots"), null);
  }

  /**
   * Lists of the same length with a copy of an array's slots, to read from, on the CPU.
   *
   * @param nLists 1 or the view's KV heads
   * @param slots [nLists, slots per list]
   * @return the lists
   */
  public static KeepLists of(int nLists, int... slots) {
    if (nLists <= 0 || slots.length % nLists != 0) {
      throw new IllegalArgumentException(
          slots.length + " slots are not " + nLists + " lists of the same length");
    }
    return of(Memory.allocateInts(slots.length).put(0, slots), nLists, slots.length / nLists);
  }

  /**
   * Lists at an address.
   *
   * @param address of i32 [nLists, count] on the context's device; 0 where only sizes are asked for
   * @param length elements there
   * @param nLists 1 or the view's KV heads
   * @param count slots in every list; with counts, the most of any
   * @return the lists
   */
  public static KeepLists at(long address, long length, int nLists, int count) {
    return new KeepLists(nLists, count, 0, Numbers.at(address, length, "length"), null);
  }

  /**
   * The same lists, further apart.
   *
   * @param elements from one list to the next; 0: the count
   * @return the lists
   */
  public KeepLists withStride(long elements) {
    return new KeepLists(nLists, count, elements, slots, counts);
  }

  /**
   * The same lists with counts of their own, on the CPU.
   *
   * @param each how many slots a list has, at most the count; direct, in native order
   * @return the lists
   */
  public KeepLists withCounts(IntBuffer each) {
    return new KeepLists(nLists, count, stride, slots, Numbers.of(each, "each"));
  }

  /**
   * The same lists with counts of their own, at an address.
   *
   * @param each address of u32 [nLists], at most the count, on the context's device
   * @return the lists
   */
  public KeepLists withCounts(long each) {
    return new KeepLists(nLists, count, stride, slots, Numbers.at(each, nLists, "nLists"));
  }

  int nLists() {
    return nLists;
  }

  int count() {
    return count;
  }

  /** Writes the lists at an offset; they are reachable as long as this object. */
  void write(Device device, boolean written, Struct out, int offset) {
    out.putInt(offset + Abi.KeepLists.STRUCT_SIZE, Abi.KeepLists.SIZEOF)
        .putInt(offset + Abi.KeepLists.N_LISTS, nLists)
        .putLong(offset + Abi.KeepLists.SLOTS,
            written ? slots.output(device, "slots") : slots.input(device, "slots"))
        .putLong(offset + Abi.KeepLists.SLOTS_LEN, slots.length)
        .putLong(offset + Abi.KeepLists.LIST_STRIDE, stride)
        .putInt(offset + Abi.KeepLists.COUNT, count)
        .putLong(offset + Abi.KeepLists.COUNTS, Numbers.each(counts, device, nLists, "counts"));
  }
}
