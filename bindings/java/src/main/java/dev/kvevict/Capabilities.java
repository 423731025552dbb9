package dev.kvevict;

/**
 * What a plan can do with a layer, and why not.
 *
 * @param canMove whether rows can be moved
 * @param canScore whether keys can be scored
 * @param canRotate whether keys can be re-rotated
 * @param moveReason why they cannot be moved
 * @param scoreReason why they cannot be scored
 * @param rotateReason why they cannot be re-rotated
 * @param needsScore whether the policy has to score keys to evict
 */
public record Capabilities(
    boolean canMove,
    boolean canScore,
    boolean canRotate,
    Reason moveReason,
    Reason scoreReason,
    Reason rotateReason,
    boolean needsScore) {
  static final int SIZE = 32;

  static Capabilities read(Struct in) {
    in.seek(4);
    return new Capabilities(
        in.getFlag(),
        in.getFlag(),
        in.getFlag(),
        in.getEnum(Reason.values()),
        in.getEnum(Reason.values()),
        in.getEnum(Reason.values()),
        in.getFlag());
  }
}
