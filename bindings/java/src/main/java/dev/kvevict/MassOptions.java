package dev.kvevict;

/** What {@link Context#budgetForMass} looks for. Immutable. */
public final class MassOptions extends MassOptionsFields<MassOptions> {
  private MassOptions() {}

  /**
   * A budget for each layer, by the mean of its rows.
   *
   * @param mass the share to be kept, in (0, 1]
   * @return the options, without sinks and recent tokens
   */
  public static MassOptions of(double mass) {
    MassOptions options = new MassOptions();
    options.mass = mass;
    return options;
  }
}
