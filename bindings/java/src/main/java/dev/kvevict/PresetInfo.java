package dev.kvevict;

/** A preset: the options under which another implementation's keep sets come out. */
public sealed interface PresetInfo permits Records.PresetInfo {
  /** {@return the name in the text form} */
  String name();

  /** {@return the same policy spelled out} */
  String policyText();

  /** {@return the implementation that it reproduces} */
  String reproduces();
}
