package dev.kvevict;

/**
 * Where a sequence keeps a layer's state, on the device of its context.
 *
 * @param lengths address of u32 [nLayers, 2]: stored and logical length; fixed for life
 * @param positions address of i32 [nLists, nListed]: positions of a layer's first nListed slots; moves with every eviction
 * @param nListed slots whose positions are listed; those after count up by one
 * @param nLists 1, or the KV heads
 */
public record SequenceMemory(
    long lengths,
    long positions,
    int nListed,
    int nLists) {
  static final int SIZE = 32;

  static SequenceMemory read(Struct in) {
    in.seek(8);
    return new SequenceMemory(
        in.getLong(),
        in.getLong(),
        in.getInt(),
        in.getInt());
  }
}
