package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;

/** A geometry with a policy and a context, checked once. Immutable and thread-safe. */
public final class Plan extends Handle {
  /** Inputs and two planes per thread, so that scoring allocates no memory of C. */
  private static final ThreadLocal<Struct> INPUTS =
      ThreadLocal.withInitial(() -> new Struct(Abi.ScoreInputs.SIZEOF + 2 * Abi.Plane.SIZEOF));

  private final Geometry geometry;
  private final Policy policy;
  private final boolean headsDiffer;
  private final Hooks hooks;

  Plan(long pointer, Geometry geometry, Policy policy, boolean headsDiffer, Hooks hooks) {
    super(pointer, Native::kvevict_plan_destroy, hooks);
    this.geometry = geometry;
    this.policy = policy;
    this.headsDiffer = headsDiffer;
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
      return new Sequence(Native.kvevict_sequence_create(plan), geometry, headsDiffer, hooks);
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
   * What the policy asks of {@link Context#select}. The caller adds scores, protected slots and
   * where the lists lie.
   *
   * @param layer decides the budget; 0 with scope MODEL
   * @param nTokens slots held; for a budget that is a ratio also the tokens seen so far
   * @return what must stay, the rules, the number of lists and how many slots each keeps
   */
  public Selection selection(int layer, int nTokens) {
    long plan = enter();
    try (Struct options = Struct.sized(Abi.SelectOptions.SIZEOF);
        Struct keep = Struct.sized(Abi.KeepLists.SIZEOF)) {
      Native.kvevict_plan_selection(plan, layer, nTokens, options.address, keep.address);
      return new Records.Selection(SelectOptions.read(options, nTokens),
          keep.intAt(Abi.KeepLists.N_LISTS), keep.intAt(Abi.KeepLists.COUNT));
    } finally {
      leave();
    }
  }

  /**
   * Scores one layer's cached tokens by the signal of the policy, on the CPU.
   *
   * @param inputs what is read
   * @param scores out: [nKvHeads, nTokens], higher keeps; direct, in native order
   * @param workspace for {@link Operation#SCORE}
   */
  public void score(ScoreInputs inputs, FloatBuffer scores, ByteBuffer workspace) {
    score(inputs, Memory.output(hooks.device, scores, "scores"), scores.remaining(),
        Memory.workspace(hooks.device, workspace), Memory.workspaceBytes(workspace), 0);
    Reference.reachabilityFence(scores);
    Reference.reachabilityFence(workspace);
  }

  /**
   * Scores one layer's cached tokens by the signal of the policy.
   *
   * @param inputs what is read
   * @param scores address of f32 [nKvHeads, nTokens], written; higher keeps
   * @param scoresLength elements of scores
   * @param workspace address of scratch for {@link Operation#SCORE}
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   */
  public void score(ScoreInputs inputs, long scores, long scoresLength, long workspace,
      long workspaceBytes, long stream) {
    if (inputs.queries != null) {
      inputs.queries.require(policy.obsWindow(), geometry.nQHeads(), "queries");
    }
    if (inputs.rowLse != null) {
      inputs.rowLse.require(policy.obsWindow(), geometry.nQHeads(), "rowLse");
    }
    long plan = enter();
    Struct struct = INPUTS.get();
    try (View.Content cache = inputs.view.content(hooks.device, inputs.nTokens)) {
      int queries = Abi.ScoreInputs.SIZEOF;
      int rowLse = queries + Abi.Plane.SIZEOF;
      Plane.write(inputs.queries, struct, queries);
      Plane.write(inputs.rowLse, struct, rowLse);
      struct.putInt(Abi.ScoreInputs.STRUCT_SIZE, Abi.ScoreInputs.SIZEOF)
          .putInt(Abi.ScoreInputs.LAYER, inputs.layer)
          .putInt(Abi.ScoreInputs.N_TOKENS, inputs.nTokens)
          .putLong(Abi.ScoreInputs.TOKEN_COUNTS,
              Numbers.each(inputs.tokenCounts, hooks.device, geometry.nKvHeads(), "tokenCounts"))
          .putLong(Abi.ScoreInputs.VIEW, cache.struct.address)
          .putLong(Abi.ScoreInputs.QUERIES, inputs.queries == null ? 0 : struct.address + queries)
          .putLong(Abi.ScoreInputs.ROW_LSE, inputs.rowLse == null ? 0 : struct.address + rowLse);
      Native.kvevict_score(
          plan, struct.address, scores, scoresLength, workspace, workspaceBytes, stream);
    } finally {
      leave();
      Reference.reachabilityFence(struct);
      Reference.reachabilityFence(inputs);
    }
  }
}
