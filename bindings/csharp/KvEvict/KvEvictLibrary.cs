using System.Runtime.InteropServices;

namespace KvEvict;

/// <summary>A GPU, and the compiler that would serve it.</summary>
/// <param name="Name">Its name, such as "NVIDIA H200".</param>
/// <param name="ComputeCapability">90 is 9.0.</param>
/// <param name="DriverVersion">The driver's CUDA version: 12040 is 12.4.</param>
/// <param name="NvrtcVersion">libnvrtc's CUDA version; 0 if there is a problem.</param>
/// <param name="Nvrtc">The libnvrtc found, as it was opened.</param>
/// <param name="Target">"sm_90": machine code for this GPU; "compute_80": PTX that the driver translates.</param>
/// <param name="Problem">Why no context can be created on it; "" if one can.</param>
public readonly record struct KvGpuInfo(
    string Name, int ComputeCapability, int DriverVersion, int NvrtcVersion, string Nvrtc, string Target,
    string Problem);

/// <summary>A row of the table of element types.</summary>
/// <param name="DType">The element type.</param>
/// <param name="Name">Its short name, such as "f32".</param>
/// <param name="ElementBytes">Bytes per element; 0 if elements share bytes.</param>
/// <param name="CanMove">Whether compaction moves it.</param>
/// <param name="CanScore">Whether keys of it can be scored.</param>
/// <param name="CanRotate">Whether RoPE can be applied again to keys of it.</param>
/// <param name="BlockElements">How many elements are stored together; 0 for opaque rows.</param>
/// <param name="BlockBytes">The bytes that these take.</param>
/// <param name="TakesScale">Whether rows may have a scale, in a companion.</param>
/// <param name="NeedsScale">Whether rows must have a scale to be read.</param>
/// <param name="TakesMinimum">Whether rows may have a minimum, in a companion.</param>
public readonly record struct KvDTypeInfo(
    KvDType DType, string Name, int ElementBytes, bool CanMove, bool CanScore, bool CanRotate, int BlockElements,
    int BlockBytes, bool TakesScale, bool NeedsScale, bool TakesMinimum);

/// <summary>What the native library is and can do on this machine.</summary>
public static unsafe class KvEvictLibrary
{
    private static readonly Lazy<KvDTypeInfo[]> s_dtypes = new(ReadDTypes);

    /// <summary>"MAJOR.MINOR.PATCH" of the native library in use.</summary>
    public static string Version => Text(Native.kvevict_version());

    /// <summary>The ABI version of the native library in use.</summary>
    public static int AbiVersion => (int)Native.kvevict_abi_version();

    /// <summary>The element types.</summary>
    public static IReadOnlyList<KvDTypeInfo> DTypes => s_dtypes.Value;

    /// <summary>The SIMD targets that the library holds and this CPU can run, best first.</summary>
    public static IReadOnlyList<string> SimdTargets
    {
        get
        {
            var names = new List<string>();
            for (byte* name; (name = Native.kvevict_simd_target_at((uint)names.Count)) != null;) names.Add(Text(name));
            return names;
        }
    }

    /// <summary>Asks whether contexts can be created on a device here.</summary>
    /// <param name="device">The device.</param>
    /// <exception cref="KvEvictException">They cannot; the message has the reason.</exception>
    /// <exception cref="DllNotFoundException">There is no native library for this platform.</exception>
    public static void CheckDevice(KvDevice device) => Native.kvevict_device_check(device);

    /// <summary>Whether contexts can be created on a device here. Never throws.</summary>
    /// <param name="device">The device.</param>
    /// <returns>False if <see cref="CheckDevice"/> throws, also without the native library.</returns>
    public static bool IsAvailable(KvDevice device) =>
        IsLoadable && NativePINVOKE.kvevict_device_check(device) == KvStatus.Ok;

    /// <summary>The GPUs that the CUDA driver sees, in its order.</summary>
    /// <returns>A row per GPU.</returns>
    /// <exception cref="KvEvictException">There is no driver or no GPU; the message has the reason.</exception>
    public static IReadOnlyList<KvGpuInfo> GetGpus()
    {
        var rows = new List<KvGpuInfo>();
        kvevict_gpu_info row = new() { struct_size = (uint)sizeof(kvevict_gpu_info) };
        KvStatus status;
        while ((status = NativePINVOKE.kvevict_gpu_at((uint)rows.Count, &row)) == KvStatus.Ok)
        {
            rows.Add(new KvGpuInfo(Text(row.name), (int)row.compute_capability, (int)row.driver_version,
                                   (int)row.nvrtc_version, Text(row.nvrtc), Text(row.target), Text(row.problem)));
        }
        if (status != KvStatus.InvalidArgument || rows.Count == 0) KvEvictException.Throw(status);
        return rows;
    }

    /// <summary>The name of a status in the library, such as "INVALID_ARGUMENT".</summary>
    /// <param name="status">A status.</param>
    /// <returns>Its name; "UNKNOWN" for a number that is no status.</returns>
    public static string StatusName(KvStatus status) => Text(Native.kvevict_status_name(status));

    /// <summary>A sentence for a reason.</summary>
    /// <param name="reason">A reason, from <see cref="KvCapabilities"/>.</param>
    /// <returns>"" for <see cref="KvReason.None"/>.</returns>
    public static string ReasonText(KvReason reason) => Text(Native.kvevict_reason_text(reason));

    // Whether the native library is there.
    internal static bool IsLoadable
    {
        get
        {
            try
            {
                NativePINVOKE.kvevict_abi_version();
                return true;
            }
            catch (Exception e) when (e is DllNotFoundException or BadImageFormatException
                                        or EntryPointNotFoundException)
            {
                return false;
            }
        }
    }

    internal static string Text(byte* text) => Marshal.PtrToStringUTF8((nint)text) ?? "";

    internal static KvDTypeInfo InfoOf(KvDType dtype)
    {
        foreach (KvDTypeInfo info in s_dtypes.Value)
        {
            if (info.DType == dtype) return info;
        }
        throw new ArgumentOutOfRangeException(nameof(dtype), dtype, "not an element type of this library");
    }

    private static KvDTypeInfo[] ReadDTypes()
    {
        var rows = new List<KvDTypeInfo>();
        kvevict_dtype_info row = new() { struct_size = (uint)sizeof(kvevict_dtype_info) };
        // The library ends a table with a status, which is no failure here.
        while (NativePINVOKE.kvevict_dtype_at((uint)rows.Count, &row) == KvStatus.Ok)
        {
            rows.Add(new KvDTypeInfo(row.dtype, Text(row.name), (int)row.element_bytes, row.can_move != 0,
                                     row.can_score != 0, row.can_rotate != 0, (int)row.block_elements,
                                     (int)row.block_bytes, row.takes_scale != 0, row.takes_scale == 2,
                                     row.takes_minimum != 0));
        }
        return [.. rows];
    }
}
