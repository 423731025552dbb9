package dev.kvevict;

/**
 * One change of a text whose cache is already computed. Positions are those before it, except for where
 * a move goes. Immutable.
 */
public final class Edit extends EditFields<Edit> {
  private Edit(EditKind kind, int first, int end) {
    this.kind = kind;
    this.first = Memory.count(first, "first");
    this.end = Memory.count(end, "end");
  }

  /**
   * Replaces the tokens from first to before end; with newCount 0 it removes, with first = end it inserts.
   *
   * @param first first position of the span
   * @param end one past the last
   * @param newCount tokens that take its place
   * @return the edit, with {@link EditPositions#ROTATE}
   */
  public static Edit replace(int first, int end, int newCount) {
    Edit edit = new Edit(EditKind.REPLACE, first, end);
    edit.newCount = Memory.count(newCount, "newCount");
    return edit;
  }

  /**
   * Moves the tokens from first to before end.
   *
   * @param first first position of the span
   * @param end one past the last
   * @param to the first position of the span afterwards
   * @return the edit, with {@link EditPositions#ROTATE}
   */
  public static Edit move(int first, int end, int to) {
    Edit edit = new Edit(EditKind.MOVE, first, end);
    edit.to = Memory.count(to, "to");
    return edit;
  }

  Struct write() {
    return fill(new Struct(Abi.Edit.SIZEOF), 0);
  }

  /** Whether it may leave more tokens than there were. */
  boolean adds() {
    return newCount > 0;
  }

  /** How many of a list's tokens there will be. */
  int held(int[] positions) {
    int held = newCount;
    for (int position : positions) {
      if (position < first || position >= end) {
        held = Math.addExact(held, 1);
      }
    }
    return held;
  }
}
