package dev.kvevict;

import java.nio.ByteBuffer;
import java.nio.IntBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** What an eviction may be told beside the policy. Immutable; start from {@link #NONE}. */
public final class EvictOptions extends EvictOptionsFields<EvictOptions> {
  /** Nothing. */
  public static final EvictOptions NONE = new EvictOptions();

  private IntBuffer positions;
  private SignalInputs[] inputs; // of each layer, null for none; null: none at all
  private ByteBuffer undoMemory; // keeps it reachable
  private long undo;
  private long undoBytes;
  private Struct ranges; // null for none
  private int rangeCount;
  private List<View> destinations = List.of();

  private EvictOptions() {}

  /**
   * Positions that must stay.
   *
   * @param protectedPositions strictly ascending; those already evicted are ignored
   * @return these options with the positions
   */
  public EvictOptions withProtected(int... protectedPositions) {
    IntBuffer copy = Memory.allocateInts(protectedPositions.length).put(0, protectedPositions);
    EvictOptions next = next();
    next.positions = copy;
    return next;
  }

  /**
   * Positions that go later or sooner than others.
   *
   * @param tokens the ranges; tokens not held are ignored
   * @return these options with the ranges
   */
  public EvictOptions withRanges(TokenRange... tokens) {
    EvictOptions next = next();
    next.ranges = TokenRange.write(tokens);
    next.rangeCount = tokens.length;
    return next;
  }

  /**
   * Sets other caches to which the rows that stay are copied, in the types there; the views keep
   * theirs. They have room for as many as {@link Sequence#keptSlots} says. For a plan that
   * {@link PlanOptions#withDestinations} is set of.
   *
   * @param views one per layer; null for layers without a full cache
   * @return these options with the destinations
   */
  public EvictOptions withDestinations(List<View> views) {
    EvictOptions next = next();
    next.destinations = Collections.unmodifiableList(new ArrayList<>(views));
    return next;
  }

  /**
   * Sets what the policy's signal needs beside keys: scores, or query rows of the window in place of
   * observed ones, as {@link Plan#score} takes them.
   *
   * @param layers inputs of each layer; null for none
   * @return these options with the inputs
   */
  public EvictOptions withInputs(List<SignalInputs> layers) {
    EvictOptions next = next();
    next.inputs = layers.toArray(new SignalInputs[0]);
    return next;
  }

  /**
   * Memory that receives the rows that go, on the CPU: see {@link Sequence#undo(List, ByteBuffer)}.
   *
   * @param memory at least {@link Sequence#undoBytes}, aligned as a workspace; direct
   * @return these options with the memory
   */
  public EvictOptions withUndo(ByteBuffer memory) {
    EvictOptions next = withUndo(Memory.address(memory, "memory"), Memory.bytes(memory));
    next.undoMemory = memory;
    return next;
  }

  /**
   * Memory that receives the rows that go: see {@link Sequence#undo(List, long, long, long)}.
   *
   * @param memory address of at least {@link Sequence#undoBytes}, aligned as a workspace
   * @param memoryBytes its bytes
   * @return these options with the memory
   */
  public EvictOptions withUndo(long memory, long memoryBytes) {
    EvictOptions next = next();
    next.undoMemory = null;
    next.undo = memory;
    next.undoBytes = memoryBytes;
    return next;
  }

  /** One for each layer; empty for none. */
  List<View> destinations() {
    return destinations;
  }

  /** Throws where rows must stay in their cache. */
  void requireInPlace() {
    if (!destinations.isEmpty()) {
      throw new IllegalArgumentException("destinations are for Sequence.evict");
    }
  }

  EvictOptions withoutInputs() {
    EvictOptions next = next();
    next.inputs = null;
    return next;
  }

  /** Throws if there is host memory, and the device is another. */
  void requireOn(Device device) {
    if (undoMemory != null) {
      Memory.requireCpu(device, "undo");
    }
  }

  /** Throws unless there are inputs for as many layers, or none. */
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
  void write(Struct out, long inputsAddress, long destinationsAddress) {
    boolean any = positions != null && positions.hasRemaining();
    fill(out, 0)
        .putLong(Abi.EvictOptions.PROTECTED_POSITIONS,
            any ? Memory.address(positions, "positions") : 0)
        .putLong(Abi.EvictOptions.PROTECTED_POSITIONS_LEN, any ? positions.remaining() : 0)
        .putLong(Abi.EvictOptions.INPUTS, inputs == null ? 0 : inputsAddress)
        .putLong(Abi.EvictOptions.INPUTS_LEN, inputs == null ? 0 : inputs.length)
        .putLong(Abi.EvictOptions.UNDO, undo)
        .putLong(Abi.EvictOptions.UNDO_BYTES, undoBytes)
        .putLong(Abi.EvictOptions.RANGES, Struct.addressOrNull(ranges))
        .putLong(Abi.EvictOptions.RANGES_LEN, rangeCount)
        .putLong(Abi.EvictOptions.DESTINATIONS, destinations.isEmpty() ? 0 : destinationsAddress)
        .putLong(Abi.EvictOptions.DESTINATIONS_LEN, destinations.size());
  }
}
