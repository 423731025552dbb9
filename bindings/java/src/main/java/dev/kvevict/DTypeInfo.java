package dev.kvevict;

/**
 * One row of the table of element types.
 *
 * @param dtype the type
 * @param name as in {@code "f32"}
 * @param elementBytes bytes per element; 0 for opaque
 * @param canMove whether compaction moves it
 * @param canScore whether a signal can read keys of it
 * @param canRotate whether RoPE can be re-applied to keys of it
 */
public record DTypeInfo(
    DType dtype,
    String name,
    int elementBytes,
    boolean canMove,
    boolean canScore,
    boolean canRotate) {
  static final int SIZE = 32;

  static DTypeInfo read(Struct in) {
    in.seek(4);
    return new DTypeInfo(
        in.getEnum(DType.values()),
        in.getText(),
        in.getInt(),
        in.getFlag(),
        in.getFlag(),
        in.getFlag());
  }
}
