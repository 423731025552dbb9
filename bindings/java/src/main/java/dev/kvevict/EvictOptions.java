package dev.kvevict;

import java.nio.ByteBuffer;
import java.nio.IntBuffer;
import java.util.List;

/** What an eviction may be told beside the policy. Immutable; start from {@link #NONE}. */
public final class EvictOptions {
  /** Nothing. */
  public static final EvictOptions NONE = new EvictOptions(null, null, null, 0, 0);

  private final IntBuffer positions;
  private final SignalInputs[] inputs; // of each layer, null for none; null: none at all
  private final ByteBuffer undoMemory; // keeps it reachable
  private final long undo;
  private final long undoBytes;

  private EvictOptions(IntBuffer positions, SignalInputs[] inputs, ByteBuffer undoMemory, long undo,
      long undoBytes) {
    this.positions = positions;
    this.inputs = inputs;
    this.undoMemory = undoMemory;
    this.undo = undo;
    this.undoBytes = undoBytes;
  }

  /**
   * Positions that must stay.
   *
   * @param protectedPositions strictly ascending; those already evicted are ignored
   * @return these options with the positions
   */
  public EvictOptions withProtected(int... protectedPositions) {
    IntBuffer copy = Memory.allocateInts(protectedPositions.length).put(0, protectedPositions);
    return new EvictOptions(copy, inputs, undoMemory, undo, undoBytes);
  }

  /**
   * What the policy's signal needs beside keys: scores, or query rows of the window in place of
   * observed ones, as {@link Plan#score} takes them.
   *
   * @param layers of each layer; null for none
   * @return these options with the inputs
   */
  public EvictOptions withInputs(List<SignalInputs> layers) {
    return new EvictOptions(
        positions, layers.toArray(new SignalInputs[0]), undoMemory, undo, undoBytes);
  }

  /**
   * Memory that receives the rows that go, on the CPU: see {@link Sequence#undo(List, ByteBuffer)}.
   *
   * @param memory at least {@link Sequence#undoBytes}, aligned as a workspace; direct
   * @return these options with the memory
   */
  public EvictOptions withUndo(ByteBuffer memory) {
    return new EvictOptions(
        positions, inputs, memory, Memory.address(memory, "memory"), Memory.bytes(memory));
  }

  /**
   * Memory that receives the rows that go: see {@link Sequence#undo(List, long, long, long)}.
   *
   * @param memory address of at least {@link Sequence#undoBytes}, aligned as a workspace
   * @param memoryBytes its bytes
   * @return these options with the memory
   */
  public EvictOptions withUndo(long memory, long memoryBytes) {
    return new EvictOptions(positions, inputs, null, memory, memoryBytes);
  }

  /** Throws if there is host memory, and the device is another. */
  void requireOn(Device device) {
    if (undoMemory != null) {
      Memory.requireCpu(device, "undo");
    }
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
        .putLong(Abi.EvictOptions.INPUTS_LEN, inputs == null ? 0 : inputs.length)
        .putLong(Abi.EvictOptions.UNDO, undo)
        .putLong(Abi.EvictOptions.UNDO_BYTES, undoBytes);
  }
}
