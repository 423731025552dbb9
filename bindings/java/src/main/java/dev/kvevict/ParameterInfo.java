package dev.kvevict;

/** A parameter of policies. */
public sealed interface ParameterInfo permits Records.ParameterInfo {
  /** {@return its name in the text form} */
  String key();

  /** {@return what its values are} */
  ParameterType type();

  /** {@return the words that it may be, such as {@code "mean|max|sum"}; empty for numbers} */
  String words();

  /** {@return what it does, in sentences} */
  String doc();

  /** {@return the least number or count; otherwise 0} */
  double least();

  /** {@return the largest number or count; otherwise 0} */
  double most();

  /** {@return whether values are above the least} */
  boolean excludesLeast();

  /** {@return whether 0 is allowed beside the least and what is above} */
  boolean takesZero();

  /** {@return the default, as in the text form} */
  String defaultText();
}
