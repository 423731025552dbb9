package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.IntBuffer;
import java.util.List;
import java.util.Objects;

/** One layer's part of {@link Plan#rotate}. Immutable. */
public final class Rotation extends RotationFields<Rotation> {
  private final View view;
  private final Numbers offsets;
  private Numbers tokenCounts; // null: all heads hold tokenCount

  private Rotation(int layer, int tokenCount, View view, Numbers offsets) {
    this.layer = layer;
    this.tokenCount = Memory.count(tokenCount, "tokenCount");
    this.view = Objects.requireNonNull(view, "view");
    this.offsets = offsets;
  }

  /**
   * A layer's part, on the CPU.
   *
   * @param layer one with a full cache
   * @param view its cache; only its keys are read and written
   * @param tokenCount slots held, the most of any head
   * @param offsets [listCount, tokenCount]: by how many positions the key in each slot moves, new
   *     position - old one; direct, in native order
   * @return the rotation, with one list, which all heads share
   */
  public static Rotation of(int layer, View view, int tokenCount, IntBuffer offsets) {
    return new Rotation(layer, tokenCount, view, Numbers.of(offsets, "offsets"));
  }

  /**
   * A layer's part, with offsets at an address.
   *
   * @param layer one with a full cache
   * @param view its cache; only its keys are read and written
   * @param tokenCount slots held, the most of any head
   * @param offsets address of i32 [listCount, tokenCount] on the context's device: by how many positions
   *     the key in each slot moves, new position - old one
   * @param length elements there
   * @return the rotation, with one list, which all heads share
   */
  public static Rotation of(int layer, View view, int tokenCount, long offsets, long length) {
    return new Rotation(layer, tokenCount, view, Numbers.at(offsets, length, "length"));
  }

  /**
   * Sets the slots held by each head if they differ, on the CPU.
   *
   * @param each slots of a KV head, at most tokenCount; direct, in native order
   * @return this rotation with the counts
   */
  public Rotation withTokenCounts(IntBuffer each) {
    Rotation next = next();
    next.tokenCounts = Numbers.of(each, "each");
    return next;
  }

  /**
   * Sets the slots held by each head if they differ, at an address.
   *
   * @param each address of u32 [kvHeads], at most tokenCount, on the context's device
   * @return this rotation with the counts
   */
  public Rotation withTokenCounts(long each) {
    Rotation next = next();
    next.tokenCounts = Numbers.at(each, Integer.MAX_VALUE, "each");
    return next;
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
        View.Content cache = rotation.view.content(device, rotation.tokenCount, rotation.tokenCounts);
        cache.requireWritable();
        caches[i] = cache;
        int at = i * Abi.Rotation.SIZEOF;
        rotation.fill(struct, at)
            .putLong(at + Abi.Rotation.TOKEN_COUNTS,
                Numbers.each(rotation.tokenCounts, device, cache.kvHeads, "tokenCounts"))
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
