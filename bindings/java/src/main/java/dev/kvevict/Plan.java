package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.Objects;

/** A geometry with a policy and a context, checked once. Immutable and thread-safe. */
public final class Plan extends Handle {
  /** Two planes per thread, so that scoring allocates nothing. */
  private static final ThreadLocal<Struct> PLANES =
      ThreadLocal.withInitial(() -> new Struct(2 * Abi.Plane.SIZEOF));

  private final Geometry geometry;
  private final Policy policy;
  private final Hooks hooks;

  Plan(long pointer, Geometry geometry, Policy policy, Hooks hooks) {
    super(pointer, Native::kvevict_plan_destroy, hooks);
    this.geometry = geometry;
    this.policy = policy;
    this.hooks = hooks;
  }

  /**
   * The geometry the plan was made from.
   *
   * @return it
   */
  public Geometry geometry() {
    return geometry;
  }

  /**
   * The policy the plan was made from.
   *
   * @return it
   */
  public Policy policy() {
    return policy;
  }

  /**
   * An empty sequence, for one request.
   *
   * @return the sequence, which keeps what it needs of this plan alive
   */
  public Sequence newSequence() {
    long plan = enter();
    try {
      return new Sequence(Native.kvevict_sequence_create(plan), geometry, hooks);
    } finally {
      leave();
    }
  }

  /**
   * Scratch in which an operation at the geometry's maxTokens is fastest, for any contents: 64-byte
   * aligned, 256 on CUDA.
   *
   * @param operation which
   * @return bytes; 0 means that null may be passed
   */
  public long workspaceBytes(Operation operation) {
    return workspaceBytes(operation, 0);
  }

  /**
   * Scratch in which an operation is fastest. It runs in any size from {@link #leastWorkspaceBytes}
   * on, with the same results.
   *
   * @param operation which
   * @param nTokens the most slots that a layer will hold then; 0: maxTokens
   * @return bytes; 0 means that null may be passed
   */
  public long workspaceBytes(Operation operation, int nTokens) {
    long plan = enter();
    try {
      return Native.kvevict_plan_workspace_bytes(plan, operation.value(), nTokens);
    } finally {
      leave();
    }
  }

  /**
   * The least scratch in which an operation runs, slower where it scores on the CPU.
   *
   * @param operation which
   * @param nTokens the most slots that a layer will hold then; 0: maxTokens
   * @return bytes; 0 means that null may be passed
   */
  public long leastWorkspaceBytes(Operation operation, int nTokens) {
    long plan = enter();
    try {
      return Native.kvevict_plan_least_workspace_bytes(plan, operation.value(), nTokens);
    } finally {
      leave();
    }
  }

  /**
   * Scratch for an operation on the CPU. Calls that run at the same time must not share it.
   *
   * @param operation which
   * @return a direct buffer of the right size and alignment
   * @throws ArithmeticException if it would exceed a buffer's 2 GiB: then pass an address
   * @throws IllegalStateException if the context is on CUDA: then pass device memory's address
   */
  public ByteBuffer allocateWorkspace(Operation operation) {
    return Memory.allocateWorkspace(hooks.device, workspaceBytes(operation));
  }

  /**
   * Memory in which a sequence keeps query rows while it observes.
   *
   * @return bytes; 0 for policies that do not score by queries
   */
  public long queryMemoryBytes() {
    long plan = enter();
    try {
      return Native.kvevict_plan_query_memory_bytes(plan);
    } finally {
      leave();
    }
  }

  /**
   * Tokens each layer keeps.
   *
   * @param nTokens tokens seen so far, at least 1
   * @return tokens per layer
   */
  public int[] layerBudgets(int nTokens) {
    int[] budgets = new int[geometry.nLayers()];
    long plan = enter();
    try {
      Native.kvevict_plan_layer_budgets_a(plan, nTokens, budgets);
    } finally {
      leave();
    }
    return budgets;
  }

  /**
   * What the plan can do with a layer, and why not.
   *
   * @param layer which
   * @return the answer
   */
  public Capabilities capabilities(int layer) {
    long plan = enter();
    try (Struct out = Struct.sized(Abi.Capabilities.SIZEOF)) {
      Native.kvevict_plan_capabilities(plan, layer, out.address);
      return Records.Capabilities.read(out);
    } finally {
      leave();
    }
  }

  /**
   * Scores one layer's cached tokens by the attention of the last queries, on the CPU.
   *
   * @param queries [nQHeads, obsWindow] rows, after RoPE
   * @param rowLse [nQHeads, obsWindow] f32 log-sum-exps of the rows' scaled logits, or null
   * @param view the layer's cache
   * @param nTokens obsWindow .. maxTokens
   * @param scores out: [nKvHeads, nTokens], higher keeps; direct, in native order
   * @param workspace for {@link Operation#SCORE_WINDOW}
   */
  public void scoreWindow(Plane queries, Plane rowLse, View view, int nTokens, FloatBuffer scores,
      ByteBuffer workspace) {
    scoreWindow(queries, rowLse, view, nTokens, Memory.output(hooks.device, scores, "scores"),
        scores.remaining(), Memory.workspace(hooks.device, workspace),
        Memory.workspaceBytes(workspace), 0);
    Reference.reachabilityFence(scores);
    Reference.reachabilityFence(workspace);
  }

  /**
   * Scores one layer's cached tokens by the attention of the last queries.
   *
   * @param queries [nQHeads, obsWindow] rows, after RoPE
   * @param rowLse [nQHeads, obsWindow] f32 log-sum-exps of the rows' scaled logits, or null
   * @param view the layer's cache
   * @param nTokens obsWindow .. maxTokens
   * @param scores address of f32 [nKvHeads, nTokens], written; higher keeps
   * @param scoresLength elements of scores
   * @param workspace address of scratch for {@link Operation#SCORE_WINDOW}
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   */
  public void scoreWindow(Plane queries, Plane rowLse, View view, int nTokens, long scores,
      long scoresLength, long workspace, long workspaceBytes, long stream) {
    queries.require(policy.obsWindow(), geometry.nQHeads(), "queries");
    if (rowLse != null) {
      rowLse.require(policy.obsWindow(), geometry.nQHeads(), "rowLse");
    }
    long plan = enter();
    Struct planes = PLANES.get();
    try (View.Content cache = view.content(hooks.device, nTokens)) {
      Plane.write(queries, planes, 0);
      Plane.write(rowLse, planes, Abi.Plane.SIZEOF);
      Native.kvevict_score_window(plan, planes.address,
          rowLse == null ? 0 : planes.address + Abi.Plane.SIZEOF, cache.struct.address, nTokens,
          scores, scoresLength, workspace, workspaceBytes, stream);
    } finally {
      leave();
      Reference.reachabilityFence(planes);
      Reference.reachabilityFence(queries);
      Reference.reachabilityFence(rowLse);
    }
  }

  /**
   * Chooses the slots of a layer that survive under the policy's budget, on the CPU.
   *
   * @param layer decides the budget; 0 with scope MODEL
   * @param scores [nKvHeads, nTokens]; null if the policy chooses nothing by score
   * @param nTokens slots held
   * @param protectedSlots strictly ascending slots that must stay; null for none
   * @param keep out: [lists, kept] slots, ascending per list; direct, in native order
   * @param workspace for {@link Operation#SELECT}
   * @return tokens kept per list
   */
  public int select(int layer, FloatBuffer scores, int nTokens, IntBuffer protectedSlots,
      IntBuffer keep, ByteBuffer workspace) {
    int kept = select(layer, Memory.input(hooks.device, scores, "scores"),
        scores == null ? 0 : scores.remaining(), nTokens,
        protectedSlots == null ? 0 : Memory.numbers(protectedSlots, "protectedSlots"),
        protectedSlots == null ? 0 : protectedSlots.remaining(),
        Memory.output(hooks.device, keep, "keep"), keep.remaining(),
        Memory.workspace(hooks.device, workspace), Memory.workspaceBytes(workspace), 0);
    Reference.reachabilityFence(scores);
    Reference.reachabilityFence(protectedSlots);
    Reference.reachabilityFence(keep);
    Reference.reachabilityFence(workspace);
    return kept;
  }

  /**
   * Chooses the slots of a layer that survive under the policy's budget, on the CPU. The arrays are
   * pinned meanwhile, which may hold up other threads' allocations: for small caches.
   *
   * @param layer decides the budget; 0 with scope MODEL
   * @param scores [nKvHeads, nTokens]; null if the policy chooses nothing by score
   * @param nTokens slots held
   * @param protectedSlots strictly ascending slots that must stay; null for none
   * @param keep out: [lists, kept] slots, ascending per list
   * @param workspace for {@link Operation#SELECT}
   * @return tokens kept per list
   * @throws IllegalStateException if the context has a parallel runner, which cannot work while an
   *     array is pinned
   */
  public int select(int layer, float[] scores, int nTokens, int[] protectedSlots, int[] keep,
      ByteBuffer workspace) {
    hooks.forbidArrays("keep");
    Objects.requireNonNull(keep, "keep");
    long plan = enter();
    try {
      return Native.kvevict_select_a(plan, layer, scores, nTokens, protectedSlots, keep,
          Memory.workspace(hooks.device, workspace), Memory.workspaceBytes(workspace), 0);
    } finally {
      leave();
      Reference.reachabilityFence(workspace);
    }
  }

  /**
   * Chooses the slots of a layer that survive under the policy's budget.
   *
   * @param layer decides the budget; 0 with scope MODEL
   * @param scores address of f32 [nKvHeads, nTokens]
   * @param scoresLength elements of scores
   * @param nTokens slots held
   * @param protectedSlots host address of i32, strictly ascending slots that must stay; 0 for none
   * @param protectedSlotsLength elements of protectedSlots
   * @param keep address of i32 [lists, kept] slots, written, ascending per list
   * @param keepCapacity elements of keep
   * @param workspace address of scratch for {@link Operation#SELECT}
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   * @return tokens kept per list
   */
  public int select(int layer, long scores, long scoresLength, int nTokens, long protectedSlots,
      long protectedSlotsLength, long keep, long keepCapacity, long workspace, long workspaceBytes,
      long stream) {
    long plan = enter();
    try {
      return Native.kvevict_select(plan, layer, scores, scoresLength, nTokens, protectedSlots,
          protectedSlotsLength, keep, keepCapacity, workspace, workspaceBytes, stream);
    } finally {
      leave();
    }
  }
}
