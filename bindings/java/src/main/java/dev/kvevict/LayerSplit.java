package dev.kvevict;

/** How the budget is spread over the layers. */
public enum LayerSplit implements CEnum {
  /** The same for every layer. */
  UNIFORM(0),
  /** Weights alpha^layer, largest-remainder rounding; the sum is exact. */
  GEOMETRIC(1),
  /** Integer steps from 2c - c/beta down to c/beta, as KVCache-Factory computes them. */
  ARITHMETIC_KVF(2),
  /** The same in floating point with the window on top, as kvpress computes it. */
  ARITHMETIC_KVPRESS(3);

  private final int value;

  LayerSplit(int value) {
    this.value = value;
  }

  @Override
  public int value() {
    return value;
  }
}
