package dev.kvevict;

/** Where the cache lies and the work is done. The constants have the C ABI's order. */
public enum Device {
  /** The host. */
  CPU,
  /** An NVIDIA GPU. */
  CUDA
}
