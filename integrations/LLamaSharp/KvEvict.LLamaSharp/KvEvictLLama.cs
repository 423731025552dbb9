using System.Runtime.InteropServices;
using LLama.Native;

namespace KvEvict.LLamaSharp;

/// <summary>Puts KvEvict between LLamaSharp and llama.cpp. Call <see cref="Enable()"/> first of all.</summary>
public static class KvEvictLLama
{
    private static readonly Lock s_lock = new();

    /// <summary>Whether <see cref="Enable()"/> has succeeded.</summary>
    public static bool IsEnabled { get; private set; }

    /// <summary>
    /// Receives a line for every eviction, and why a sequence or a context is not evicted. Null: the reasons
    /// go to the standard error stream. It is called in the thread that decodes; what it throws is lost.
    /// </summary>
    public static Action<string>? Log { get; set; }

    /// <summary>
    /// Loads LLamaSharp's native library with KvEvict in front of it. LLamaSharp loads its library once, at the
    /// first native call of a process, so this comes before. A second call does nothing.
    /// </summary>
    /// <exception cref="InvalidOperationException">LLamaSharp has loaded its native library already.</exception>
    /// <exception cref="PlatformNotSupportedException">This is not Linux on x64.</exception>
    /// <exception cref="DllNotFoundException">A native library is not where it should be.</exception>
    public static void Enable() => Enable(new DefaultNativeLibrarySelectingPolicy());

    /// <summary>As <see cref="Enable()"/>, for programs that choose LLamaSharp's native library by a policy of their own.</summary>
    /// <param name="selectingPolicy">Names the libllama that is to be loaded.</param>
    public static void Enable(LLama.Abstractions.INativeLibrarySelectingPolicy selectingPolicy)
    {
        ArgumentNullException.ThrowIfNull(selectingPolicy);
        lock (s_lock)
        {
            if (IsEnabled) return;
            if (!OperatingSystem.IsLinux() || RuntimeInformation.ProcessArchitecture != Architecture.X64)
                throw new PlatformNotSupportedException("KvEvict.LLamaSharp has native libraries for Linux on x64 only.");
            if (NativeLibraryConfig.LLama.LibraryHasLoaded)
            {
                throw new InvalidOperationException("LLamaSharp has loaded its native library already. "
                    + "Call KvEvictLLama.Enable() before anything of LLamaSharp that calls native code.");
            }
            var hooks = new HookedLibraries(selectingPolicy);
            NativeLibraryConfig.LLama.WithSelectingPolicy(hooks);
            NativeApi.llama_empty_call();
            Native.Start(hooks.Loaded ?? throw new DllNotFoundException(hooks.WhyNot));
            IsEnabled = true;
        }
    }

    /// <summary>
    /// Evicts every context that is created from now on without a policy of its own, after each decode: also those
    /// that LLamaSharp creates itself, as its StatelessExecutor does. Null: no longer.
    /// </summary>
    /// <param name="policy">A policy's text form, as <c>snapkv:budget=2048,margin=64</c>.</param>
    /// <param name="options">What applies to these contexts; null for the defaults.</param>
    /// <exception cref="ArgumentException">The policy is no policy, or one that llama.cpp's cache cannot hold.</exception>
    public static void EvictEveryContext(string? policy, KvEvictContextOptions? options = null) =>
        Native.Order(policy, options ?? new KvEvictContextOptions { AutoEvict = true }, forAll: true);
}
