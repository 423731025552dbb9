package dev.kvevict;

/** A GPU, and what would compile kernels for it. */
public sealed interface GpuInfo permits Records.GpuInfo {
  /** {@return the compute capability: 90 is 9.0} */
  int computeCapability();

  /** {@return the CUDA version of the driver: 12040 is 12.4} */
  int driverVersion();

  /** {@return the libnvrtc's CUDA version; 0 if there is a problem} */
  int nvrtcVersion();

  /** {@return its name, as in {@code "NVIDIA H200"}} */
  String name();

  /** {@return the libnvrtc found, as it was opened} */
  String nvrtc();

  /**
   * {@return the compilation target: {@code "sm_90"}, machine code for this GPU, or
   * {@code "compute_80"}, PTX that the driver translates}
   */
  String target();

  /** {@return why no context can be created on it; empty if one can} */
  String problem();
}
