package dev.kvevict;

import java.nio.IntBuffer;
import java.util.List;

/** What an eviction may be told beside the policy. Immutable; start from {@link #NONE}. */
public final class EvictOptions {
  /** Nothing. */
  public static final EvictOptions NONE = new EvictOptions(null, null);

  private final IntBuffer positions;
  private final SignalInputs[] inputs; // of each layer, null for none; null: none at all

  private EvictOptions(IntBuffer positions, SignalInputs[] inputs) {
    this.positions = positions;
    this.inputs = inputs;
  }

  /**
   * Positions that must stay.
   *
   * @param protectedPositions strictly ascending; those already evicted are ignored
   * @return these options with the positions
   */
  public EvictOptions withProtected(int... protectedPositions) {
    IntBuffer copy = Memory.allocateInts(protectedPositions.length).put(0, protectedPositions);
    return new EvictOptions(copy, inputs);
  }

  /**
   * What the policy's signal needs beside keys: scores, or query rows of the window in place of
   * observed ones, as {@link Plan#score} takes them.
   *
   * @param layers of each layer; null for none
   * @return these options with the inputs
   */
  public EvictOptions withInputs(List<SignalInputs> layers) {
    return new EvictOptions(positions, layers.toArray(new SignalInputs[0]));
  }

  /** Throws unless there are inputs of as many layers, or none at all. */
  void requireLayers(int n) {
    if (inputs != null && inputs.length != n) {
      throw new IllegalArgumentException(inputs.length + " inputs for " + n + " layers");
    }
  }

  /** A layer's inputs. */
  SignalInputs inputs(int layer) {
    return inputs == null || inputs[layer] == null ? SignalInputs.NONE : inputs[layer];
  }

  /** Writes these options to the begin of memory, and there the address of their inputs. */
  void write(Struct out, long inputsAddress) {
    boolean any = positions != null && positions.hasRemaining();
    out.putInt(Abi.EvictOptions.STRUCT_SIZE, Abi.EvictOptions.SIZEOF)
        .putLong(Abi.EvictOptions.PROTECTED_POSITIONS,
            any ? Memory.address(positions, "positions") : 0)
        .putLong(Abi.EvictOptions.PROTECTED_POSITIONS_LEN, any ? positions.remaining() : 0)
        .putLong(Abi.EvictOptions.INPUTS, inputs == null ? 0 : inputsAddress)
        .putLong(Abi.EvictOptions.INPUTS_LEN, inputs == null ? 0 : inputs.length);
  }
}
