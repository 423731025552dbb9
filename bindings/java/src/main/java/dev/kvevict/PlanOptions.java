package dev.kvevict;

/** What a plan may be told beside geometry and policy. Immutable. */
public final class PlanOptions {
  /** Nothing. */
  public static final PlanOptions NONE =
      new PlanOptions(new int[0], new double[0], false, false, 0);

  private final int[] headBudgets;
  private final double[] layerBudgets;
  private final boolean reportMass;
  private final boolean destinations;
  private final int draftTokens;

  private PlanOptions(int[] headBudgets, double[] layerBudgets, boolean reportMass,
      boolean destinations, int draftTokens) {
    this.headBudgets = headBudgets;
    this.layerBudgets = layerBudgets;
    this.reportMass = reportMass;
    this.destinations = destinations;
    this.draftTokens = draftTokens;
  }

  /**
   * The same with budgets of the KV heads.
   *
   * @param headBudgets tokens that each KV head keeps, everything included: the heads of all layers
   *     with a full cache, layer by layer, in place of the policy's budget and layer split, for
   *     scope KV_HEAD; above a head's length it keeps all. Without any: the policy's
   * @return the options
   */
  public PlanOptions withHeadBudgets(int... headBudgets) {
    for (int budget : headBudgets) {
      Memory.count(budget, "headBudgets");
    }
    return new PlanOptions(
        headBudgets.clone(), layerBudgets, reportMass, destinations, draftTokens);
  }

  /**
   * The same with budgets of the layers.
   *
   * @param layerBudgets a policy's budget for each layer with a full cache, in place
   *     of that and of the layer split; not with budgets of the heads. Without any: the policy's
   * @return the options
   */
  public PlanOptions withLayerBudgets(double... layerBudgets) {
    return new PlanOptions(
        headBudgets, layerBudgets.clone(), reportMass, destinations, draftTokens);
  }

  /**
   * The same, and evictions measure what mass they keep, for {@link ListReport}, in a workspace with
   * room for keys beside scores.
   *
   * @return the options
   */
  public PlanOptions withReportMass() {
    return new PlanOptions(headBudgets, layerBudgets, true, destinations, draftTokens);
  }

  /**
   * The same for evictions with {@link EvictOptions#withDestinations}, for which sequences then have
   * room.
   *
   * @return the options
   */
  public PlanOptions withDestinations() {
    return new PlanOptions(headBudgets, layerBudgets, reportMass, true, draftTokens);
  }

  /**
   * The same for speculative decoding. Of a policy that scores by the last queries, sequences then
   * remember so many rows beside the window, and a {@link Sequence#trimTo} that takes back as many
   * tokens leaves the window whole.
   *
   * @param tokenCount the most that a step takes back
   * @return the options
   */
  public PlanOptions withDraftTokens(int tokenCount) {
    return new PlanOptions(headBudgets, layerBudgets, reportMass, destinations,
        Memory.count(tokenCount, "tokenCount"));
  }

  boolean headsDiffer() {
    return headBudgets.length > 0;
  }

  /** The budgets lie behind the struct. */
  Struct write() {
    int size = Abi.PlanOptions.SIZEOF;
    int heads = headBudgets.length;
    int layers = layerBudgets.length;
    Struct options = new Struct(size + 8 * layers + 4 * heads);
    long ofHeads = options.address + size + 8L * layers;
    options.putInt(Abi.PlanOptions.STRUCT_SIZE, size)
        .putInt(Abi.PlanOptions.DRAFT_TOKENS, draftTokens)
        .putLong(Abi.PlanOptions.LAYER_BUDGETS, layers == 0 ? 0 : options.address + size)
        .putLong(Abi.PlanOptions.LAYER_BUDGETS_LEN, layers)
        .putLong(Abi.PlanOptions.HEAD_BUDGETS, heads == 0 ? 0 : ofHeads)
        .putLong(Abi.PlanOptions.HEAD_BUDGETS_LEN, heads)
        .putFlag(Abi.PlanOptions.REPORT_MASS, reportMass)
        .putFlag(Abi.PlanOptions.HAS_DESTINATIONS, destinations);
    for (int i = 0; i < layers; ++i) {
      options.putDouble(size + 8 * i, layerBudgets[i]);
    }
    for (int i = 0; i < heads; ++i) {
      options.putInt(size + 8 * layers + 4 * i, headBudgets[i]);
    }
    return options;
  }
}
