package dev.kvevict;

/** What a plan may be told beside geometry and policy. Immutable; start from {@link #NONE}. */
public final class PlanOptions extends PlanOptionsFields<PlanOptions> {
  /** Nothing. */
  public static final PlanOptions NONE = new PlanOptions();

  private int[] headBudgets = {};
  private double[] layerBudgets = {};

  private PlanOptions() {}

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
    PlanOptions next = next();
    next.headBudgets = headBudgets.clone();
    return next;
  }

  /**
   * The same with budgets of the layers.
   *
   * @param layerBudgets a policy's budget for each layer with a full cache, in place
   *     of that and of the layer split; not with budgets of the heads. Without any: the policy's
   * @return the options
   */
  public PlanOptions withLayerBudgets(double... layerBudgets) {
    PlanOptions next = next();
    next.layerBudgets = layerBudgets.clone();
    return next;
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
    fill(options, 0)
        .putLong(Abi.PlanOptions.LAYER_BUDGETS, layers == 0 ? 0 : options.address + size)
        .putLong(Abi.PlanOptions.LAYER_BUDGETS_LEN, layers)
        .putLong(Abi.PlanOptions.HEAD_BUDGETS, heads == 0 ? 0 : ofHeads)
        .putLong(Abi.PlanOptions.HEAD_BUDGETS_LEN, heads);
    for (int i = 0; i < layers; ++i) {
      options.putDouble(size + 8 * i, layerBudgets[i]);
    }
    for (int i = 0; i < heads; ++i) {
      options.putInt(size + 8 * layers + 4 * i, headBudgets[i]);
    }
    return options;
  }
}
