package dev.kvevict;

/** A policy in tokens, for one context length. */
public sealed interface ResolvedPolicy permits Records.ResolvedPolicy {
  /** {@return tokens kept in all} */
  int budget();

  /** {@return first tokens kept} */
  int sink();

  /** {@return last tokens kept, the observation window included} */
  int recent();

  /** {@return tokens chosen by score} */
  int selected();

  /** {@return last queries that score; 0 if none do} */
  int obsWindow();

  /** {@return whether the scores by which lists are chosen are a mass} */
  boolean scoresAreMass();
}
