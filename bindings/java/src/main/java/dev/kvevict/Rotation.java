package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.IntBuffer;
import java.util.List;
import java.util.Objects;

/** One layer's part of {@link Plan#rotate}. Immutable. */
public final class Rotation {
  private final int layer;
  private final int nTokens;
  private final View view;
  private final Numbers offsets;
  private final int nLists;
  private final Numbers tokenCounts; // null: all heads hold nTokens

  private Rotation(
      int layer, int nTokens, View view, Numbers offsets, int nLists, Numbers tokenCounts) {
    this.layer = layer;
    this.nTokens = Memory.count(nTokens, "nTokens");
    this.view = Objects.requireNonNull(view, "view");
    this.offsets = offsets;
    this.nLists = nLists;
    this.tokenCounts = tokenCounts;
  }

  /**
   * A layer's part, on the CPU.
   *
   * @param layer which, with a full cache
   * @param view its cache, of which only keys are read and written
   * @param nTokens slots held, the most of any head
   * @param offsets [nLists, nTokens]: by how many positions the key in each slot moves, new
   *     position - old one; direct, in native order
   * @return the rotation, with one list, which all heads share
   */
  public static Rotation of(int layer, View view, int nTokens, IntBuffer offsets) {
    return new Rotation(layer, nTokens, view, Numbers.of(offsets, "offsets"), 1, null);
  }

  /**
   * A layer's part, with offsets at an address.
   *
   * @param layer which, with a full cache
   * @param view its cache, of which only keys are read and written
   * @param nTokens slots held, the most of any head
   * @param offsets address of i32 [nLists, nTokens] on the context's device: by how many positions
   *     the key in each slot moves, new position - old one
   * @param length elements there
   * @return the rotation, with one list, which all heads share
   */
  public static Rotation of(int layer, View view, int nTokens, long offsets, long length) {
    return new Rotation(layer, nTokens, view, Numbers.at(offsets, length, "length"), 1, null);
  }

  /**
   * How many lists the offsets are.
   *
   * @param n 1, or the KV heads
   * @return this rotation with so many
   */
  public Rotation withLists(int n) {
    return new Rotation(layer, nTokens, view, offsets, Memory.count(n, "n"), tokenCounts);
  }

  /**
   * Where heads hold different numbers of slots, on the CPU.
   *
   * @param each slots of a KV head, at most nTokens; direct, in native order
   * @return this rotation with the counts
   */
  public Rotation withTokenCounts(IntBuffer each) {
    return new Rotation(layer, nTokens, view, offsets, nLists, Numbers.of(each, "each"));
  }

  /**
   * Where heads hold different numbers of slots, at an address.
   *
   * @param each address of u32 [nKvHeads], at most nTokens, on the context's device
   * @return this rotation with the counts
   */
  public Rotation withTokenCounts(long each) {
    return new Rotation(
        layer, nTokens, view, offsets, nLists, Numbers.at(each, Integer.MAX_VALUE, "each"));
  }

  /** The native structs of a call's rotations; a try block keeps what they point to reachable. */
  static final class All implements AutoCloseable {
    final Struct struct;
    final int n;
    private final Rotation[] rotations;
    private final View.Content[] caches;

    All(Device device, List<Rotation> list) {
      rotations = list.toArray(new Rotation[0]);
      n = rotations.length;
      caches = new View.Content[n];
      struct = new Struct(n * Abi.Rotation.SIZEOF);
      for (int i = 0; i < n; ++i) {
        Rotation rotation = rotations[i];
        View.Content cache = rotation.view.content(device, rotation.nTokens, rotation.tokenCounts);
        cache.requireWritable();
        caches[i] = cache;
        int at = i * Abi.Rotation.SIZEOF;
        struct.putInt(at + Abi.Rotation.STRUCT_SIZE, Abi.Rotation.SIZEOF)
            .putInt(at + Abi.Rotation.LAYER, rotation.layer)
            .putInt(at + Abi.Rotation.N_TOKENS, rotation.nTokens)
            .putInt(at + Abi.Rotation.N_LISTS, rotation.nLists)
            .putLong(at + Abi.Rotation.TOKEN_COUNTS,
                Numbers.each(rotation.tokenCounts, device, cache.nKvHeads, "tokenCounts"))
            .putLong(at + Abi.Rotation.VIEW, cache.struct.address)
            .putLong(at + Abi.Rotation.OFFSETS, rotation.offsets.input(device, "offsets"))
            .putLong(at + Abi.Rotation.OFFSETS_LEN, rotation.offsets.length);
      }
    }

    @Override
    public void close() {
      Reference.reachabilityFence(this);
    }
  }
}
