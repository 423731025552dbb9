package dev.kvevict;

/**
 * A preset: the options under which another implementation's keep sets come out.
 *
 * @param name as in the text form
 * @param policyText the same policy spelled out
 * @param reproduces whose behaviour this is
 */
public record PresetInfo(
    String name,
    String policyText,
    String reproduces) {
  static final int SIZE = 32;

  static PresetInfo read(Struct in) {
    in.seek(8);
    return new PresetInfo(
        in.getText(),
        in.getText(),
        in.getText());
  }
}
