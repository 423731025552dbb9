package dev.kvevict;

/** A preset: the options under which another implementation's keep sets come out. */
public sealed interface PresetInfo permits Records.PresetInfo {
  /** {@return as in the text form} */
  String name();

  /** {@return the same policy spelled out} */
  String policyText();

  /** {@return whose behaviour this is} */
  String reproduces();
}
