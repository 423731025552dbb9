package dev.kvevict;

/** A policy in tokens, for one context length. */
public sealed interface ResolvedPolicy permits Records.ResolvedPolicy {
  /** {@return tokens kept in all} */
  int budget();

  /** {@return first tokens kept} */
  int nSink();

  /** {@return last tokens kept, the observation window included} */
  int nRecent();

  /** {@return tokens chosen by score} */
  int nSelected();

  /** {@return last queries that score; 0 if none do} */
  int obsWindow();

  /** {@return whether the scores by which lists are chosen are a mass} */
  boolean scoresAreMass();
}
