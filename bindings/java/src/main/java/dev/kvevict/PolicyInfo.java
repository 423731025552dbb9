package dev.kvevict;

/**
 * One row of the table of policies.
 *
 * @param kind the policy
 * @param name as in the text form
 * @param signal what ranks a token
 * @param shaping what happens to the numbers
 * @param budget how many survive, where
 * @param trigger when it runs
 * @param paper its source; empty if none
 */
public record PolicyInfo(
    PolicyKind kind,
    String name,
    String signal,
    String shaping,
    String budget,
    String trigger,
    String paper) {
  static final int SIZE = 56;

  static PolicyInfo read(Struct in) {
    in.seek(4);
    return new PolicyInfo(
        in.getEnum(PolicyKind.values()),
        in.getText(),
        in.getText(),
        in.getText(),
        in.getText(),
        in.getText(),
        in.getText());
  }
}
