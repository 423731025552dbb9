package dev.kvevict;

/** Rows of one layer, outside of a {@link PagedCache}. Immutable. */
public final class PagedRows extends PagedRowsFields<PagedRows> {
  private final Plane k;
  private final Plane v;

  private PagedRows(int layer, int firstSlot, int tokenCount, Plane k, Plane v) {
    this.layer = Memory.count(layer, "layer");
    this.firstSlot = Memory.count(firstSlot, "firstSlot");
    this.tokenCount = Memory.count(tokenCount, "tokenCount");
    this.k = k;
    this.v = v;
  }

  /**
   * Rows.
   *
   * @param layer one with a full cache
   * @param firstSlot the slot of row 0
   * @param tokenCount rows of each KV head; 0 is valid
   * @param k keys, of the geometry's type, in any layout; null: they are left alone
   * @param v values likewise; not both null
   * @return the rows
   */
  public static PagedRows of(int layer, int firstSlot, int tokenCount, Plane k, Plane v) {
    return new PagedRows(layer, firstSlot, tokenCount, k, v);
  }

  /** Writes them at an offset; of those that are read, the planes are written to. */
  void write(Geometry geometry, boolean isRead, Struct out, int at) {
    int heads = geometry.evicted(layer).kvHeads();
    check(k, heads, isRead, "k");
    check(v, heads, isRead, "v");
    fill(out, at);
    Plane.write(k, out, at + Abi.PagedRows.K);
    Plane.write(v, out, at + Abi.PagedRows.V);
  }

  private void check(Plane plane, int heads, boolean isRead, String name) {
    if (plane == null) {
      return;
    }
    plane.require(tokenCount, heads, name);
    if (isRead && plane.isReadOnly()) {
      throw new IllegalArgumentException(name + " is in a read-only buffer");
    }
  }
}
