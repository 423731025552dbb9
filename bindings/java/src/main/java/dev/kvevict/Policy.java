package dev.kvevict;

import java.util.Objects;

/**
 * What survives an eviction: signal, shaping, budget.
 *
 * <p>Always kept are the first {@code nSink} tokens, the last {@code nRecent}, the observation window
 * (unless {@code keepWindow} is false) and protected positions; they count inside the budget. The
 * rest of the budget goes to the highest scores.
 *
 * <p>A value, most easily written as text: {@code Policy.parse("snapkv:budget=2048,window=32")}. It
 * is checked when it is used.
 *
 * @param kind what ranks the tokens
 * @param budget tokens kept per KV head and layer, everything included; (0, 1]: ratio of the context
 * @param nSink first tokens, always kept
 * @param nRecent last tokens, always kept
 * @param obsWindow last queries that score
 * @param keepWindow whether the window's own tokens are kept
 * @param pool pooling of the scores along the tokens
 * @param poolKernel odd width of the pooling
 * @param poolEdge what average pooling divides by at an edge
 * @param windowReduce over the window's rows: mean or sum
 * @param groupReduce over the query heads of a KV head
 * @param shapingOrder whether the group is reduced before or after pooling
 * @param scope what shares a keep list
 * @param scopeReduce over heads (and layers) sharing a list
 * @param tie which of two equal scores survives
 * @param layerSplit how the budget is spread over the layers
 * @param pyramidAlpha geometric ratio in (0, 1]
 * @param pyramidBeta steepness of the arithmetic splits
 * @param seed of the random policy, all 64 bits
 */
public record Policy(
    PolicyKind kind,
    double budget,
    int nSink,
    int nRecent,
    int obsWindow,
    boolean keepWindow,
    Pool pool,
    int poolKernel,
    PoolEdge poolEdge,
    Reduce windowReduce,
    Reduce groupReduce,
    ShapingOrder shapingOrder,
    Scope scope,
    Reduce scopeReduce,
    Tie tie,
    LayerSplit layerSplit,
    double pyramidAlpha,
    int pyramidBeta,
    long seed) {
  static final int SIZE = 96;

  /**
   * The defaults of a policy kind.
   *
   * @param kind the kind
   * @return the policy
   */
  public static Policy of(PolicyKind kind) {
    try (Struct out = new Struct(SIZE)) {
      Native.kvevict_policy_init(out.address, SIZE, kind.ordinal());
      return read(out);
    }
  }

  /**
   * Reads the text form, {@code name} or {@code name:key=value,key=value}.
   *
   * @param text a policy or a preset, and what differs from its defaults
   * @return the policy, validated
   * @throws KvEvictException with the column and what was expected there
   */
  public static Policy parse(String text) {
    try (Struct out = Struct.sized(SIZE)) {
      Native.kvevict_policy_parse(Objects.requireNonNull(text, "text"), out.address);
      return read(out);
    }
  }

  /**
   * This policy with some keys changed.
   *
   * @param keys as in the text form: {@code "budget=0.25,sink=8"}
   * @return the changed policy, validated
   * @throws KvEvictException as for {@link #parse}
   */
  public Policy with(String keys) {
    String text = format();
    return parse(text + (text.indexOf(':') < 0 ? ":" : ",") + keys);
  }

  /**
   * Writes the text form, with every key that differs from the kind's default.
   *
   * @return the text
   * @throws KvEvictException if the policy is invalid
   */
  public String format() {
    try (Struct policy = write()) {
      long size = Native.kvevict_policy_format(policy.address, 0, 0) + 1;
      try (Struct text = new Struct(Math.toIntExact(size))) {
        Native.kvevict_policy_format(policy.address, text.address, size);
        return NativeSupport.stringAt(text.address);
      }
    }
  }

  /**
   * Checks every field and their combination, for any context length.
   *
   * @throws KvEvictException with the numbers that do not go together
   */
  public void validate() {
    try (Struct policy = write()) {
      Native.kvevict_policy_validate(policy.address);
    }
  }

  /**
   * Turns the policy into token counts, strictly: a context too short for it is an error.
   *
   * @param nContext tokens, at least 1
   * @return the counts
   */
  public ResolvedPolicy resolve(int nContext) {
    try (Struct policy = write();
        Struct out = Struct.sized(ResolvedPolicy.SIZE)) {
      Native.kvevict_policy_resolve(policy.address, nContext, out.address);
      return ResolvedPolicy.read(out);
    }
  }

  /**
   * Tokens each layer keeps of a context.
   *
   * @param nContext tokens, at least 1
   * @param nLayers layers, at least 1
   * @return tokens per layer
   */
  public int[] layerBudgets(int nContext, int nLayers) {
    int[] budgets = new int[Memory.count(nLayers, "nLayers")];
    try (Struct policy = write()) {
      Native.kvevict_policy_layer_budgets_a(policy.address, nContext, budgets);
    }
    return budgets;
  }

  Struct write() {
    return Struct.sized(SIZE)
        .putEnum(kind, "kind")
        .putDouble(budget)
        .putCount(nSink, "nSink")
        .putCount(nRecent, "nRecent")
        .putCount(obsWindow, "obsWindow")
        .putFlag(keepWindow)
        .putEnum(pool, "pool")
        .putCount(poolKernel, "poolKernel")
        .putEnum(poolEdge, "poolEdge")
        .putEnum(windowReduce, "windowReduce")
        .putEnum(groupReduce, "groupReduce")
        .putEnum(shapingOrder, "shapingOrder")
        .putEnum(scope, "scope")
        .putEnum(scopeReduce, "scopeReduce")
        .putEnum(tie, "tie")
        .putEnum(layerSplit, "layerSplit")
        .putDouble(pyramidAlpha)
        .putCount(pyramidBeta, "pyramidBeta")
        .putInt(0)
        .putLong(seed);
  }

  static Policy read(Struct in) {
    in.seek(4);
    return new Policy(
        in.getEnum(PolicyKind.values()),
        in.getDouble(),
        in.getInt(),
        in.getInt(),
        in.getInt(),
        in.getFlag(),
        in.getEnum(Pool.values()),
        in.getInt(),
        in.getEnum(PoolEdge.values()),
        in.getEnum(Reduce.values()),
        in.getEnum(Reduce.values()),
        in.getEnum(ShapingOrder.values()),
        in.getEnum(Scope.values()),
        in.getEnum(Reduce.values()),
        in.getEnum(Tie.values()),
        in.getEnum(LayerSplit.values()),
        in.getDouble(),
        in.getInt(),
        in.getLong());
  }
}
