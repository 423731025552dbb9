package dev.kvevict;

import java.util.Objects;

/**
 * Which budget {@link Context#budgetForMass} looks for.
 *
 * @param mass the share to be kept, in (0, 1]
 * @param scope which rows have one budget: each its own, those of a layer, all
 * @param sink first slots that must stay; they count
 * @param recent last slots that must stay, the window included
 * @param everyRow every row keeps the mass, not the mean of their shares
 */
public record MassOptions(double mass, Scope scope, int sink, int recent, boolean everyRow) {
  /** Checks what is not the library's to check. */
  public MassOptions {
    Objects.requireNonNull(scope, "scope");
    Memory.count(sink, "sink");
    Memory.count(recent, "recent");
  }

  /**
   * A budget for each layer, by the mean of its rows.
   *
   * @param mass the share to be kept
   * @return the options, without sinks and recent tokens
   */
  public static MassOptions of(double mass) {
    return new MassOptions(mass, Scope.LAYER, 0, 0, false);
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
