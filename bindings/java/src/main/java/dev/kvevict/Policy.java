package dev.kvevict;

import java.util.Objects;

/**
 * What survives an eviction: signal, shaping, budget.
 *
 * <p>Always kept are the first tokens ({@link #sink}), the last ({@link #recent}), the window
 * (unless {@link #keepWindow} is false) and protected positions; they count inside the
 * budget. The rest of the budget goes to the highest scores.
 *
 * <p>A value, most easily written as text: {@code Policy.parse("snapkv:budget=2048,window=32")}, or
 * by {@link #builder}. It is checked when it is used.
 */
public final class Policy {
  /** As C has it; not written to again. */
  final Struct struct;

  private Policy(Struct struct) {
    this.struct = struct;
  }

  /**
   * The defaults of a policy kind.
   *
   * @param kind the kind
   * @return the policy
   */
  public static Policy of(PolicyKind kind) {
    return builder(kind).build();
  }

  /**
   * A policy to fill in, which begins with the defaults of a kind.
   *
   * @param kind the kind
   * @return the builder
   */
  public static Builder builder(PolicyKind kind) {
    Struct struct = new Struct(Abi.Policy.SIZEOF);
    Native.kvevict_policy_init(struct.address, Abi.Policy.SIZEOF, kind.value());
    return new Builder(struct);
  }

  /**
   * Reads the text form, {@code name} or {@code name:key=value,key=value}.
   *
   * @param text a policy or a preset, and what differs from its defaults
   * @return the policy, validated
   * @throws KvEvictException with the column and what was expected there
   */
  public static Policy parse(String text) {
    try (Struct out = Struct.sized(Abi.Policy.SIZEOF)) {
      Native.kvevict_policy_parse(Objects.requireNonNull(text, "text"), out.address);
      return new Policy(out);
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
   * A policy to fill in, which begins as this one.
   *
   * @return the builder
   */
  public Builder toBuilder() {
    return new Builder(struct.copy());
  }

  /**
   * Writes the text form, with every key that differs from the kind's default.
   *
   * @return the text
   * @throws KvEvictException if the policy is invalid
   */
  public String format() {
    try (struct) {
      long size = Native.kvevict_policy_format(struct.address, 0, 0) + 1;
      try (Struct text = new Struct(Math.toIntExact(size))) {
        Native.kvevict_policy_format(struct.address, text.address, size);
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
    try (struct) {
      Native.kvevict_policy_validate(struct.address);
    }
  }

  /**
   * Turns the policy into token counts, strictly: a context too short for it is an error.
   *
   * @param contextTokens tokens, at least 1
   * @return the counts
   */
  public ResolvedPolicy resolve(int contextTokens) {
    try (struct;
        Struct out = Struct.sized(Abi.ResolvedPolicy.SIZEOF)) {
      Native.kvevict_policy_resolve(struct.address, contextTokens, out.address);
      return Records.ResolvedPolicy.read(out);
    }
  }

  /**
   * Tokens each layer keeps of a context.
   *
   * @param contextTokens tokens, at least 1
   * @param layerCount layers, at least 1
   * @return tokens per layer
   */
  public int[] layerBudgets(int contextTokens, int layerCount) {
    int[] budgets = new int[Memory.count(layerCount, "layerCount")];
    try (struct) {
      Native.kvevict_policy_layer_budgets_a(struct.address, contextTokens, budgets);
    }
    return budgets;
  }

  /**
   * Whether this policy wants an input, so that an engine makes no others.
   *
   * @param input rows of a view, or a part of {@link SignalInputs}
   * @return whether it is read, and whether calls fail without it
   * @throws KvEvictException if the policy is invalid
   */
  public Need needOf(Input input) {
    try (struct) {
      return CEnum.of(Need.class, Native.kvevict_policy_need(struct.address, input.value()));
    }
  }

  /** {@return what ranks the tokens} */
  public PolicyKind kind() {
    return struct.enumAt(Abi.Policy.KIND, PolicyKind.class);
  }

  /** {@return tokens kept per KV head and layer; in (0, 1]: ratio of the context} */
  public double budget() {
    return struct.doubleAt(Abi.Policy.BUDGET);
  }

  /** {@return first tokens, always kept} */
  public int sink() {
    return struct.intAt(Abi.Policy.N_SINK);
  }

  /** {@return the share of the budget that counts in place of {@link #sink}; 0: none} */
  public double sinkShare() {
    return struct.doubleAt(Abi.Policy.SINK_SHARE);
  }

  /** {@return last tokens, always kept} */
  public int recent() {
    return struct.intAt(Abi.Policy.N_RECENT);
  }

  /** {@return the share of the budget that counts in place of {@link #recent}; 0: none} */
  public double recentShare() {
    return struct.doubleAt(Abi.Policy.RECENT_SHARE);
  }

  /** {@return last queries that score} */
  public int obsWindow() {
    return struct.intAt(Abi.Policy.OBS_WINDOW);
  }

  /** {@return the share of the budget that counts in place of {@link #obsWindow}; 0: none} */
  public double windowShare() {
    return struct.doubleAt(Abi.Policy.WINDOW_SHARE);
  }

  /** {@return whether the window's own tokens are kept} */
  public boolean keepWindow() {
    return struct.flagAt(Abi.Policy.KEEP_WINDOW);
  }

  /** {@return pooling of the scores along the tokens} */
  public Pool pool() {
    return struct.enumAt(Abi.Policy.POOL, Pool.class);
  }

  /** {@return odd width of the pooling} */
  public int poolKernel() {
    return struct.intAt(Abi.Policy.POOL_KERNEL);
  }

  /** {@return what average pooling divides by at an edge} */
  public PoolEdge poolEdge() {
    return struct.enumAt(Abi.Policy.POOL_EDGE, PoolEdge.class);
  }

  /** {@return how the window's rows, or the queries that saw a token, are reduced} */
  public Reduce windowReduce() {
    return struct.enumAt(Abi.Policy.WINDOW_REDUCE, Reduce.class);
  }

  /** {@return what a row's weights are multiplied by before rows are reduced} */
  public RowWeight rowWeight() {
    return struct.enumAt(Abi.Policy.ROW_WEIGHT, RowWeight.class);
  }

  /** {@return the keys over which a row's softmax goes} */
  public SoftmaxKeys softmaxKeys() {
    return struct.enumAt(Abi.Policy.SOFTMAX_KEYS, SoftmaxKeys.class);
  }

  /** {@return so many times their variance is added to the mean of the window's rows} */
  public double rowSpread() {
    return struct.doubleAt(Abi.Policy.ROW_SPREAD);
  }

  /** Rows of queries that score; 0: not those of a window. */
  int queryRows() {
    boolean hasWindow = kind() != PolicyKind.H2O && kind() != PolicyKind.NON_CAUSAL;
    return hasWindow ? obsWindow() : 0;
  }

  /** {@return how the query heads of a KV head are reduced} */
  public Reduce groupReduce() {
    return struct.enumAt(Abi.Policy.GROUP_REDUCE, Reduce.class);
  }

  /** {@return whether the group is reduced before or after pooling} */
  public ShapingOrder shapingOrder() {
    return struct.enumAt(Abi.Policy.SHAPING_ORDER, ShapingOrder.class);
  }

  /** {@return what shares a keep list} */
  public Scope scope() {
    return struct.enumAt(Abi.Policy.SCOPE, Scope.class);
  }

  /** {@return how heads (and layers) sharing a list are reduced} */
  public Reduce scopeReduce() {
    return struct.enumAt(Abi.Policy.SCOPE_REDUCE, Reduce.class);
  }

  /** {@return which of two equal scores survives} */
  public Tie tie() {
    return struct.enumAt(Abi.Policy.TIE, Tie.class);
  }

  /** {@return how the budget is spread over the layers} */
  public LayerSplit layerSplit() {
    return struct.enumAt(Abi.Policy.LAYER_SPLIT, LayerSplit.class);
  }

  /** {@return geometric ratio in (0, 1]} */
  public double pyramidAlpha() {
    return struct.doubleAt(Abi.Policy.PYRAMID_ALPHA);
  }

  /** {@return of the split CAKE, the root that is taken of a layer's entropy} */
  public double cakeTau1() {
    return struct.doubleAt(Abi.Policy.CAKE_TAU1);
  }

  /** {@return of the split CAKE, the root that is taken of a layer's variance} */
  public double cakeTau2() {
    return struct.doubleAt(Abi.Policy.CAKE_TAU2);
  }

  /** {@return the attention to both ends above which a layer is lazy} */
  public double lazyThreshold() {
    return struct.doubleAt(Abi.Policy.LAZY_THRESHOLD);
  }

  /** {@return steepness of the arithmetic splits} */
  public int pyramidBeta() {
    return struct.intAt(Abi.Policy.PYRAMID_BETA);
  }

  /** {@return the seed of the random policy, all 64 bits} */
  public long seed() {
    return struct.longAt(Abi.Policy.SEED);
  }

  /** {@return tokens that are compared with each other} */
  public int block() {
    return struct.intAt(Abi.Policy.BLOCK);
  }

  /** {@return neighbouring slots that stay or go together} */
  public int selectBlock() {
    return struct.intAt(Abi.Policy.SELECT_BLOCK);
  }

  /** {@return neighbouring slots that are scored and chosen from as if they were the cache} */
  public int chunk() {
    return struct.intAt(Abi.Policy.CHUNK);
  }

  /** {@return the weight of each token by which its shaped score is multiplied} */
  public ValueWeight valueWeight() {
    return struct.enumAt(Abi.Policy.VALUE_WEIGHT, ValueWeight.class);
  }

  /** {@return what is added to a shaped score before it is multiplied by the weight} */
  public double weightEpsilon() {
    return struct.doubleAt(Abi.Policy.WEIGHT_EPSILON);
  }

  /** {@return the share that the likeness of keys has in a score} */
  public double redundancy() {
    return struct.doubleAt(Abi.Policy.REDUNDANCY);
  }

  /** {@return the cosine above which keys are similar} */
  public double similarity() {
    return struct.doubleAt(Abi.Policy.SIMILARITY);
  }

  /** {@return the share of what a head keeps that goes to shaped scores alone} */
  public double secure() {
    return struct.doubleAt(Abi.Policy.SECURE);
  }

  /** {@return whether a token of LagKV scores by its place within its partition} */
  public boolean lagRanks() {
    return struct.flagAt(Abi.Policy.LAG_RANKS);
  }

  /** {@return whether LagKV's budget is that of each partition} */
  public boolean budgetOfPartition() {
    return struct.flagAt(Abi.Policy.BUDGET_OF_PARTITION);
  }

  /** {@return how the KV heads of a layer share its budget} */
  public HeadSplit headSplit() {
    return struct.enumAt(Abi.Policy.HEAD_SPLIT, HeadSplit.class);
  }

  /** {@return what adaptive heads keep of a head's budget whatever others have} */
  public double headFloor() {
    return struct.doubleAt(Abi.Policy.HEAD_FLOOR);
  }

  /** {@return the least score that heads by threshold keep} */
  public double scoreThreshold() {
    return struct.doubleAt(Abi.Policy.SCORE_THRESHOLD);
  }

  /** {@return what becomes of the rows that go} */
  public Merge merge() {
    return struct.enumAt(Abi.Policy.MERGE, Merge.class);
  }

  /** {@return of values that merge, the least similarity of their keys} */
  public double mergeThreshold() {
    return struct.doubleAt(Abi.Policy.MERGE_THRESHOLD);
  }

  /** {@return of values that merge, the part of those that go} */
  public double mergeFraction() {
    return struct.doubleAt(Abi.Policy.MERGE_FRACTION);
  }

  /** {@return whether keys that move are turned by RoPE to their new slots} */
  public boolean rotate() {
    return struct.flagAt(Abi.Policy.ROTATE);
  }

  /** {@return how many tokens more than a layer would keep leave it alone} */
  public int margin() {
    return struct.intAt(Abi.Policy.MARGIN);
  }

  /** {@return per how many tokens behind the prompt an eviction works once; 0: every one does} */
  public int every() {
    return struct.intAt(Abi.Policy.EVERY);
  }

  /** {@return how the prompt counts, once it has ended} */
  public Prompt prompt() {
    return struct.enumAt(Abi.Policy.PROMPT, Prompt.class);
  }

  /** {@return how many of the blocks that would go stay on top of the budget} */
  public int rescue() {
    return struct.intAt(Abi.Policy.RESCUE);
  }

  /** {@return against what blocks are held of which some are rescued} */
  public Anchor anchor() {
    return struct.enumAt(Abi.Policy.ANCHOR, Anchor.class);
  }

  /** {@return up to which share of the mass the best blocks stay, others by their keys; 0: all} */
  public double diverseMass() {
    return struct.doubleAt(Abi.Policy.DIVERSE_MASS);
  }

  /** {@return of how many last calls alone sums are; 0: of all} */
  public int sumLast() {
    return struct.intAt(Abi.Policy.SUM_LAST);
  }

  /** {@return whether a layer's first call is not pooled, as long as it is the only one} */
  public boolean sumRawFirst() {
    return struct.flagAt(Abi.Policy.SUM_RAW_FIRST);
  }

  /** {@return whose attention a sequence adds up in one row of sums} */
  public SumRows sumRows() {
    return struct.enumAt(Abi.Policy.SUM_ROWS, SumRows.class);
  }

  /** {@return of how many slots, from its own on, the most attention is added to a slot's sum} */
  public int sumPool() {
    return struct.intAt(Abi.Policy.SUM_POOL);
  }

  /** {@return whether heads compete by scores times the share that their best have of all} */
  public boolean headNormalize() {
    return struct.flagAt(Abi.Policy.HEAD_NORMALIZE);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Policy that && struct.equals(that.struct);
  }

  @Override
  public int hashCode() {
    return struct.hashCode();
  }

  /** {@return the text form, or for an invalid policy the reason in parentheses} */
  @Override
  public String toString() {
    try {
      return format();
    } catch (KvEvictException e) {
      return "(" + e.getMessage() + ")";
    }
  }

  /** Names the parts of a {@link Policy}. */
  public static final class Builder {
    private final Struct struct;

    private Builder(Struct struct) {
      this.struct = struct;
    }

    /**
     * Tokens kept per KV head and layer, everything included.
     *
     * @param tokens how many; in (0, 1] a ratio of the context
     * @return this
     */
    public Builder budget(double tokens) {
      struct.putDouble(Abi.Policy.BUDGET, tokens);
      return this;
    }

    /**
     * First tokens, always kept.
     *
     * @param tokens how many
     * @return this
     */
    public Builder sink(int tokens) {
      struct.putCount(Abi.Policy.N_SINK, tokens, "sink");
      struct.putDouble(Abi.Policy.SINK_SHARE, 0);
      return this;
    }

    /**
     * The share of the budget that counts in place of {@link #sink}.
     *
     * @param share in [0, 1); 0: none
     * @return this
     */
    public Builder sinkShare(double share) {
      struct.putDouble(Abi.Policy.SINK_SHARE, share);
      return this;
    }

    /**
     * Last tokens, always kept.
     *
     * @param tokens how many
     * @return this
     */
    public Builder recent(int tokens) {
      struct.putCount(Abi.Policy.N_RECENT, tokens, "recent");
      struct.putDouble(Abi.Policy.RECENT_SHARE, 0);
      return this;
    }

    /**
     * The share of the budget that counts in place of {@link #recent}.
     *
     * @param share in [0, 1); 0: none
     * @return this
     */
    public Builder recentShare(double share) {
      struct.putDouble(Abi.Policy.RECENT_SHARE, share);
      return this;
    }

    /**
     * Last queries that score.
     *
     * @param queries how many
     * @return this
     */
    public Builder obsWindow(int queries) {
      struct.putCount(Abi.Policy.OBS_WINDOW, queries, "obsWindow");
      struct.putDouble(Abi.Policy.WINDOW_SHARE, 0);
      return this;
    }

    /**
     * The share of the budget that counts in place of {@link #obsWindow}.
     *
     * @param share in [0, 1); 0: none
     * @return this
     */
    public Builder windowShare(double share) {
      struct.putDouble(Abi.Policy.WINDOW_SHARE, share);
      return this;
    }

    /**
     * Whether the window's own tokens are kept.
     *
     * @param keep true to keep them
     * @return this
     */
    public Builder keepWindow(boolean keep) {
      struct.putFlag(Abi.Policy.KEEP_WINDOW, keep);
      return this;
    }

    /**
     * Pooling of the scores along the tokens.
     *
     * @param how which
     * @return this
     */
    public Builder pool(Pool how) {
      struct.putEnum(Abi.Policy.POOL, how, "pool");
      return this;
    }

    /**
     * Width of the pooling.
     *
     * @param width odd
     * @return this
     */
    public Builder poolKernel(int width) {
      struct.putCount(Abi.Policy.POOL_KERNEL, width, "poolKernel");
      return this;
    }

    /**
     * What average pooling divides by at an edge.
     *
     * @param divisor which
     * @return this
     */
    public Builder poolEdge(PoolEdge divisor) {
      struct.putEnum(Abi.Policy.POOL_EDGE, divisor, "poolEdge");
      return this;
    }

    /**
     * Over the window's rows, or the queries that saw a token.
     *
     * @param how which; of queries that saw a token there is no maximum
     * @return this
     */
    public Builder windowReduce(Reduce how) {
      struct.putEnum(Abi.Policy.WINDOW_REDUCE, how, "windowReduce");
      return this;
    }

    /**
     * What a row's weights are multiplied by before rows are reduced.
     *
     * @param what which
     * @return this
     */
    public Builder rowWeight(RowWeight what) {
      struct.putEnum(Abi.Policy.ROW_WEIGHT, what, "rowWeight");
      return this;
    }

    /**
     * The keys over which a row's softmax goes.
     *
     * @param keys which
     * @return this
     */
    public Builder softmaxKeys(SoftmaxKeys keys) {
      struct.putEnum(Abi.Policy.SOFTMAX_KEYS, keys, "softmaxKeys");
      return this;
    }

    /**
     * What is added to the mean of the window's rows: so many times their variance.
     *
     * @param factor at least 0
     * @return this
     */
    public Builder rowSpread(double factor) {
      struct.putDouble(Abi.Policy.ROW_SPREAD, factor);
      return this;
    }

    /**
     * Over the query heads of a KV head.
     *
     * @param how which
     * @return this
     */
    public Builder groupReduce(Reduce how) {
      struct.putEnum(Abi.Policy.GROUP_REDUCE, how, "groupReduce");
      return this;
    }

    /**
     * Whether the group is reduced before or after pooling.
     *
     * @param order which
     * @return this
     */
    public Builder shapingOrder(ShapingOrder order) {
      struct.putEnum(Abi.Policy.SHAPING_ORDER, order, "shapingOrder");
      return this;
    }

    /**
     * What shares a keep list.
     *
     * @param shared which
     * @return this
     */
    public Builder scope(Scope shared) {
      struct.putEnum(Abi.Policy.SCOPE, shared, "scope");
      return this;
    }

    /**
     * Over heads (and layers) sharing a list.
     *
     * @param how which
     * @return this
     */
    public Builder scopeReduce(Reduce how) {
      struct.putEnum(Abi.Policy.SCOPE_REDUCE, how, "scopeReduce");
      return this;
    }

    /**
     * Which of two equal scores survives.
     *
     * @param winner which
     * @return this
     */
    public Builder tie(Tie winner) {
      struct.putEnum(Abi.Policy.TIE, winner, "tie");
      return this;
    }

    /**
     * How the budget is spread over the layers.
     *
     * @param split which
     * @return this
     */
    public Builder layerSplit(LayerSplit split) {
      struct.putEnum(Abi.Policy.LAYER_SPLIT, split, "layerSplit");
      return this;
    }

    /**
     * Ratio of the geometric split.
     *
     * @param ratio in (0, 1]
     * @return this
     */
    public Builder pyramidAlpha(double ratio) {
      struct.putDouble(Abi.Policy.PYRAMID_ALPHA, ratio);
      return this;
    }

    /**
     * Of the split CAKE: the root that is taken of a layer's entropy.
     *
     * @param tau in [0.01, 100]
     * @return this
     */
    public Builder cakeTau1(double tau) {
      struct.putDouble(Abi.Policy.CAKE_TAU1, tau);
      return this;
    }

    /**
     * Of the split CAKE: the root that is taken of a layer's variance.
     *
     * @param tau in [0.01, 100]
     * @return this
     */
    public Builder cakeTau2(double tau) {
      struct.putDouble(Abi.Policy.CAKE_TAU2, tau);
      return this;
    }

    /**
     * The attention to both ends above which a layer is lazy.
     *
     * @param threshold in [0, 1]; 1: never
     * @return this
     */
    public Builder lazyThreshold(double threshold) {
      struct.putDouble(Abi.Policy.LAZY_THRESHOLD, threshold);
      return this;
    }

    /**
     * Steepness of the arithmetic splits.
     *
     * @param beta at least 1
     * @return this
     */
    public Builder pyramidBeta(int beta) {
      struct.putCount(Abi.Policy.PYRAMID_BETA, beta, "pyramidBeta");
      return this;
    }

    /**
     * Of the random policy.
     *
     * @param bits all 64
     * @return this
     */
    public Builder seed(long bits) {
      struct.putLong(Abi.Policy.SEED, bits);
      return this;
    }

    /**
     * Tokens that are compared with each other.
     *
     * @param tokens how many
     * @return this
     */
    public Builder block(int tokens) {
      struct.putCount(Abi.Policy.BLOCK, tokens, "block");
      return this;
    }

    /**
     * Neighbouring slots that stay or go together.
     *
     * @param slots how many; 1: each by itself
     * @return this
     */
    public Builder selectBlock(int slots) {
      struct.putCount(Abi.Policy.SELECT_BLOCK, slots, "selectBlock");
      return this;
    }

    /**
     * Neighbouring slots that are scored and chosen from as if they were the cache.
     *
     * @param slots how many; 0: all at once
     * @return this
     */
    public Builder chunk(int slots) {
      struct.putCount(Abi.Policy.CHUNK, slots, "chunk");
      return this;
    }

    /**
     * The weight of each token: a shaped score becomes (score + epsilon) * weight.
     *
     * @param what which
     * @return this
     */
    public Builder valueWeight(ValueWeight what) {
      struct.putEnum(Abi.Policy.VALUE_WEIGHT, what, "valueWeight");
      return this;
    }

    /**
     * What is added to a shaped score before it is multiplied by the weight.
     *
     * @param epsilon at least 0
     * @return this
     */
    public Builder weightEpsilon(double epsilon) {
      struct.putDouble(Abi.Policy.WEIGHT_EPSILON, epsilon);
      return this;
    }

    /**
     * The share that the likeness of keys has in a score.
     *
     * @param share in [0, 1]
     * @return this
     */
    public Builder redundancy(double share) {
      struct.putDouble(Abi.Policy.REDUNDANCY, share);
      return this;
    }

    /**
     * The cosine above which keys are similar.
     *
     * @param cosine in [0, 1]
     * @return this
     */
    public Builder similarity(double cosine) {
      struct.putDouble(Abi.Policy.SIMILARITY, cosine);
      return this;
    }

    /**
     * The share of what a head keeps that goes to shaped scores alone, before they are weighed or
     * lose redundancy.
     *
     * @param share in [0, 1]
     * @return this
     */
    public Builder secure(double share) {
      struct.putDouble(Abi.Policy.SECURE, share);
      return this;
    }

    /**
     * Whether a token of LagKV scores by its place within its partition.
     *
     * @param ranks false to score it by the number that places it
     * @return this
     */
    public Builder lagRanks(boolean ranks) {
      struct.putFlag(Abi.Policy.LAG_RANKS, ranks);
      return this;
    }

    /**
     * Whether LagKV's budget is that of each partition.
     *
     * @param each true for that, false for a budget of the context
     * @return this
     */
    public Builder budgetOfPartition(boolean each) {
      struct.putFlag(Abi.Policy.BUDGET_OF_PARTITION, each);
      return this;
    }

    /**
     * How the KV heads of a layer share its budget.
     *
     * @param split which way
     * @return this
     */
    public Builder headSplit(HeadSplit split) {
      struct.putEnum(Abi.Policy.HEAD_SPLIT, split, "headSplit");
      return this;
    }

    /**
     * What adaptive heads keep of a head's budget whatever others have.
     *
     * @param floor in [0, 1]
     * @return this
     */
    public Builder headFloor(double floor) {
      struct.putDouble(Abi.Policy.HEAD_FLOOR, floor);
      return this;
    }

    /**
     * The least score that heads by threshold keep.
     *
     * @param score the threshold
     * @return this
     */
    public Builder scoreThreshold(double score) {
      struct.putDouble(Abi.Policy.SCORE_THRESHOLD, score);
      return this;
    }

    /**
     * What becomes of the rows that go.
     *
     * @param rule by which they merge into rows that stay
     * @return this
     */
    public Builder merge(Merge rule) {
      struct.putEnum(Abi.Policy.MERGE, rule, "merge");
      return this;
    }

    /**
     * Of values that merge, the least similarity of their keys.
     *
     * @param similarity in [0, 1]
     * @return this
     */
    public Builder mergeThreshold(double similarity) {
      struct.putDouble(Abi.Policy.MERGE_THRESHOLD, similarity);
      return this;
    }

    /**
     * Of values that merge, the part of those that go, the most similar.
     *
     * @param part in (0, 1]
     * @return this
     */
    public Builder mergeFraction(double part) {
      struct.putDouble(Abi.Policy.MERGE_FRACTION, part);
      return this;
    }

    /**
     * Whether heads compete by scores times the share that their best have in the sum of them.
     *
     * @param normalize whether they do
     * @return this
     */
    public Builder headNormalize(boolean normalize) {
      struct.putFlag(Abi.Policy.HEAD_NORMALIZE, normalize);
      return this;
    }

    /**
     * Whether keys that move are turned by RoPE to their new slots.
     *
     * @param rotate whether they are
     * @return this
     */
    public Builder rotate(boolean rotate) {
      struct.putFlag(Abi.Policy.ROTATE, rotate);
      return this;
    }

    /**
     * How many tokens more than it would keep leave a layer alone.
     *
     * @param tokens at least 0
     * @return this
     */
    public Builder margin(int tokens) {
      struct.putCount(Abi.Policy.MARGIN, tokens, "margin");
      return this;
    }

    /**
     * Per how many tokens behind the prompt an eviction works once.
     *
     * @param tokens at least 0; 0: every one does
     * @return this
     */
    public Builder every(int tokens) {
      struct.putCount(Abi.Policy.EVERY, tokens, "every");
      return this;
    }

    /**
     * How the prompt counts, once it has ended.
     *
     * @param prompt inside the budget or beside it, pinned or not
     * @return this
     */
    public Builder prompt(Prompt prompt) {
      struct.putEnum(Abi.Policy.PROMPT, prompt, "prompt");
      return this;
    }

    /**
     * How many of the blocks that would go stay on top of the budget.
     *
     * @param blocks at least 0
     * @return this
     */
    public Builder rescue(int blocks) {
      struct.putCount(Abi.Policy.RESCUE, blocks, "blocks");
      return this;
    }

    /**
     * Against what blocks are held of which some are rescued.
     *
     * @param anchor a bit for each slot of a block
     * @return this
     */
    public Builder anchor(Anchor anchor) {
      struct.putEnum(Abi.Policy.ANCHOR, anchor, "anchor");
      return this;
    }

    /**
     * Up to which share of the mass the best blocks stay; others do by how unlike their keys are.
     *
     * @param share up to 1; 0: all go by score
     * @return this
     */
    public Builder diverseMass(double share) {
      struct.putDouble(Abi.Policy.DIVERSE_MASS, share);
      return this;
    }

    /**
     * Of how many last calls alone sums are, none of them before the layer's last eviction.
     *
     * @param calls at least 0, for all calls
     * @return this
     */
    public Builder sumLast(int calls) {
      struct.putCount(Abi.Policy.SUM_LAST, calls, "calls");
      return this;
    }

    /**
     * Whether a layer's first call is not pooled, as long as it is the only one.
     *
     * @param raw whether it is not
     * @return this
     */
    public Builder sumRawFirst(boolean raw) {
      struct.putFlag(Abi.Policy.SUM_RAW_FIRST, raw);
      return this;
    }

    /**
     * Whose attention a sequence adds up in one row of sums.
     *
     * @param rows a KV head's, a query head's or the layer's
     * @return this
     */
    public Builder sumRows(SumRows rows) {
      struct.putEnum(Abi.Policy.SUM_ROWS, rows, "rows");
      return this;
    }

    /**
     * Of how many slots, from its own on, the most attention is added to a slot's sum.
     *
     * @param slots at least 1; 1: its own
     * @return this
     */
    public Builder sumPool(int slots) {
      struct.putCount(Abi.Policy.SUM_POOL, slots, "slots");
      return this;
    }

    /**
     * The policy.
     *
     * @return it
     */
    public Policy build() {
      return new Policy(struct.copy());
    }
  }
}
