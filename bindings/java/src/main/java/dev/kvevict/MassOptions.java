package dev.kvevict;

import java.util.Objects;

/**
 * What {@link Context#budgetForMass} looks for.
 */
public final class MassOptions {
  private final double mass;
  private final Scope scope;
  private final int sink;
  private final int recent;
  private final boolean everyRow;

  private MassOptions(double mass, Scope scope, int sink, int recent, boolean everyRow) {
    this.mass = mass;
    this.scope = scope;
    this.sink = sink;
    this.recent = recent;
    this.everyRow = everyRow;
  }

  /**
   * A budget for each layer, by the mean of its rows.
   *
   * @param mass the share to be kept, in (0, 1]
   * @return the options, without sinks and recent tokens
   */
  public static MassOptions of(double mass) {
    return new MassOptions(mass, Scope.LAYER, 0, 0, false);
  }

  /**
   * Sets which rows share a budget: none, those of a layer, or all.
   *
   * @param which the scope
   * @return these options with the scope
   */
  public MassOptions withScope(Scope which) {
    return new MassOptions(mass, Objects.requireNonNull(which, "which"), sink, recent, everyRow);
  }

  /**
   * Slots that must stay; they count.
   *
   * @param first the number of first ones
   * @param last the number of last ones, the window included
   * @return these options with the slots
   */
  public MassOptions withEnds(int first, int last) {
    return new MassOptions(
        mass, scope, Memory.count(first, "first"), Memory.count(last, "last"), everyRow);
  }

  /**
   * Every row keeps the mass, not the mean of their shares.
   *
   * @return these options for every row
   */
  public MassOptions ofEveryRow() {
    return new MassOptions(mass, scope, sink, recent, true);
  }

  Scope scope() {
    return scope;
  }

  Struct write() {
    return new Struct(Abi.MassOptions.SIZEOF)
        .putInt(Abi.MassOptions.STRUCT_SIZE, Abi.MassOptions.SIZEOF)
        .putEnum(Abi.MassOptions.SCOPE, scope)
        .putDouble(Abi.MassOptions.MASS, mass)
        .putInt(Abi.MassOptions.N_SINK, sink)
        .putInt(Abi.MassOptions.N_RECENT, recent)
        .putFlag(Abi.MassOptions.EVERY_ROW, everyRow);
  }
}
