package dev.kvevict;

/** Where the cache lies and the work is done. */
public enum Device implements CEnum {
  /** The host. */
  CPU(0),
  /** An NVIDIA GPU. */
  CUDA(1);

  private final int value;

  Device(int value) {
    this.value = value;
  }

  @Override
  public int value() {
    return value;
  }
}
