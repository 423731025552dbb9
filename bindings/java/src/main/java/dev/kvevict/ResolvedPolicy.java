package dev.kvevict;

/** A policy in tokens, for one context length. */
public sealed interface ResolvedPolicy permits Records.ResolvedPolicy {
  /** Stands for as many query rows as are given (h2o). */
  int ANY_QUERY_ROWS = Abi.QUERY_ROWS_ANY;

  /** A query row for each slot held (non-causal). */
  int ALL_QUERY_ROWS = Abi.QUERY_ROWS_ALL;

  /** {@return tokens kept in all} */
  int budget();

  /** {@return first tokens kept} */
  int sink();

  /** {@return last tokens kept, the observation window included} */
  int recent();

  /** {@return tokens chosen by score} */
  int selected();

  /**
   * {@return query rows by which a layer is scored: the observation window of policies that have
   *     one, {@link #ANY_QUERY_ROWS}, {@link #ALL_QUERY_ROWS}, or 0 where queries are not read}
   */
  int queryRows();

  /** {@return whether the scores by which lists are chosen are a mass} */
  boolean scoresAreMass();
}
