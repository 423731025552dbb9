package dev.kvevict;

/**
 * A GPU, and what would compile kernels for it.
 *
 * @param computeCapability 90 is 9.0
 * @param driverVersion CUDA of the driver: 12040 is 12.4
 * @param nvrtcVersion likewise; 0 if there is a problem
 * @param name as in {@code "NVIDIA H200"}
 * @param nvrtc the libnvrtc found, as it was opened
 * @param target {@code "sm_90"}: machine code for this GPU; {@code "compute_80"}: PTX that the
 *     driver translates
 * @param problem why no context can be created on it; empty if one can
 */
public record GpuInfo(
    int computeCapability,
    int driverVersion,
    int nvrtcVersion,
    String name,
    String nvrtc,
    String target,
    String problem) {
  static final int SIZE = 48;

  static GpuInfo read(Struct in) {
    in.seek(4);
    return new GpuInfo(
        in.getInt(),
        in.getInt(),
        in.getInt(),
        in.getText(),
        in.getText(),
        in.getText(),
        in.getText());
  }
}
