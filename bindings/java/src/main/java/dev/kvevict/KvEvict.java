package dev.kvevict;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;

/** What the library can say without a context. */
public final class KvEvict {
  private KvEvict() {}

  /**
   * The version of the native library in use.
   *
   * @return {@code "MAJOR.MINOR.PATCH"}
   */
  public static String version() {
    return Native.kvevict_version();
  }

  /**
   * The ABI version of the native library in use.
   *
   * @return the number in its SONAME
   */
  public static int abiVersion() {
    return Native.kvevict_abi_version();
  }

  /**
   * Asks whether contexts can be created on a device here.
   *
   * @param device the device
   * @throws KvEvictException with {@link Status#UNAVAILABLE} and the reason
   */
  public static void checkDevice(Device device) {
    Native.kvevict_device_check(device.value());
  }

  /**
   * The GPUs that the CUDA driver sees, in its order.
   *
   * @return a row per GPU
   * @throws KvEvictException with {@link Status#UNAVAILABLE} and the reason, if there is no driver
   *     or no GPU
   */
  public static List<GpuInfo> gpus() {
    return table(Abi.GpuInfo.SIZEOF, Native::kvevict_gpu_at, Records.GpuInfo::read);
  }

  /**
   * The element types.
   *
   * @return a row per type
   */
  public static List<DTypeInfo> dtypes() {
    return table(Abi.DTypeInfo.SIZEOF, Native::kvevict_dtype_at, Records.DTypeInfo::read);
  }

  /**
   * The policies.
   *
   * @return a row per policy
   */
  public static List<PolicyInfo> policies() {
    return table(Abi.PolicyInfo.SIZEOF, Native::kvevict_policy_at, Records.PolicyInfo::read);
  }

  /**
   * The presets, which are policies with the options of another implementation.
   *
   * @return a row per preset
   */
  public static List<PresetInfo> presets() {
    return table(Abi.PresetInfo.SIZEOF, Native::kvevict_preset_at, Records.PresetInfo::read);
  }

  /**
   * The parameters of all policies, in the order of the text form.
   *
   * @return a row per parameter, with the default that holds for policies that say no other
   */
  public static List<ParameterInfo> parameters() {
    return parametersOf(null);
  }

  /**
   * The parameters that a policy has.
   *
   * @param policy the name of a policy or a preset
   * @return a row per parameter, with the policy's default
   * @throws KvEvictException if there is no such policy
   */
  public static List<ParameterInfo> parameters(String policy) {
    Policy.of(policy);
    return parametersOf(policy);
  }

  private static List<ParameterInfo> parametersOf(String policy) {
    return table(Abi.ParameterInfo.SIZEOF,
        (index, out) -> Native.kvevict_parameter_at(policy, index, out),
        Records.ParameterInfo::read);
  }

  /**
   * The SIMD targets that the library holds and this CPU can run.
   *
   * @return names such as {@code "AVX3_DL"}, best first
   */
  public static List<String> simdTargets() {
    List<String> names = new ArrayList<>();
    for (String name; (name = Native.kvevict_simd_target_at(names.size())) != null; ) {
      names.add(name);
    }
    return names;
  }

  /**
   * Suggests a budget for a model.
   *
   * @param maxTokens the model's context length
   * @param fullCacheBytes K and V of all layers at maxTokens
   * @return tokens; 0: do not evict
   */
  public static int autoBudget(int maxTokens, long fullCacheBytes) {
    return Native.kvevict_auto_budget(maxTokens, Memory.count(fullCacheBytes, "fullCacheBytes"));
  }

  /**
   * The reason as a sentence.
   *
   * @param reason why a plan cannot do something, see {@link Capabilities}
   * @return the text; empty for {@link Reason#NONE}
   */
  public static String reasonText(Reason reason) {
    return Native.kvevict_reason_text(reason.value());
  }

  private interface Row {
    void fill(int index, long address);
  }

  /** The end of a table is the index that fails. */
  private static <T> List<T> table(int size, Row row, Function<Struct, T> read) {
    List<T> rows = new ArrayList<>();
    try (Struct out = Struct.sized(size)) {
      while (true) {
        row.fill(rows.size(), out.address);
        rows.add(read.apply(out));
      }
    } catch (KvEvictException e) {
      if (e.status() != Status.INVALID_ARGUMENT) {
        throw e;
      }
      return rows;
    }
  }
}
