using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace KvEvict;

// Finds libkvevict_csharp, and says where it looked if it does not.
internal static class NativeLoader
{
    internal const string LibraryVariable = "KVEVICT_LIBRARY";
    private const string Name = "kvevict_csharp";

#pragma warning disable CA2255 // the resolver has to stand before the first import is called
    [ModuleInitializer]
#pragma warning restore CA2255
    internal static void Register() =>
        NativeLibrary.SetDllImportResolver(typeof(NativeLoader).Assembly, Resolve);

    internal static nint Resolve(string name, Assembly assembly, DllImportSearchPath? search)
    {
        if (name != Name) return 0;
        string? forced = Environment.GetEnvironmentVariable(LibraryVariable);
        if (!string.IsNullOrEmpty(forced)) return Load([Path.GetFullPath(forced)]);
        // If NuGet's assets are known, the runtime finds the library by itself.
        if (NativeLibrary.TryLoad(name, assembly, search, out nint library)) return library;
        return Load(Candidates());
    }

    private static IEnumerable<string> Candidates()
    {
        string file = OperatingSystem.IsWindows() ? $"{Name}.dll" : $"lib{Name}.so";
        string folder = AppContext.BaseDirectory;
        yield return Path.Combine(folder, file);
        yield return Path.Combine(folder, "runtimes", RuntimeInformation.RuntimeIdentifier, "native", file);
        yield return Path.Combine(folder, "runtimes", Platform(), "native", file);
    }

    private static nint Load(IEnumerable<string> paths)
    {
        var tried = new List<string>();
        foreach (string path in paths.Distinct())
        {
            try
            {
                return NativeLibrary.Load(path);
            }
            catch (Exception e) when (e is DllNotFoundException or BadImageFormatException)
            {
                tried.Add($"  {path}: {(File.Exists(path) ? e.Message : "no such file")}");
            }
        }
        throw new DllNotFoundException(Explanation(Platform(), tried));
    }

    // Why there is no library, for a platform of the form "linux-x64".
    internal static string Explanation(string platform, IEnumerable<string> tried)
    {
        string remedy = NativePlatform.Runtimes.Split(", ").Contains(platform)
            ? $"Set {LibraryVariable} to the file, or reference the NuGet package KvEvict."
            : $"Build kvevict for {platform} and set {LibraryVariable} to its {Name} library.";
        return $"KvEvict has no native library on {platform}; its package has those for {NativePlatform.Runtimes} "
            + $"(Linux: glibc {NativePlatform.Glibc} or later). Tried:{Environment.NewLine}"
            + $"{string.Join(Environment.NewLine, tried)}{Environment.NewLine}{remedy}";
    }

    // The portable name of this platform, independent of the runtime's distribution.
    internal static string Platform()
    {
        string runtime = RuntimeInformation.RuntimeIdentifier;
        string architecture = RuntimeInformation.ProcessArchitecture.ToString().ToLowerInvariant();
        if (!OperatingSystem.IsLinux()) return runtime;
        return runtime.Contains("musl") || runtime.StartsWith("alpine", StringComparison.Ordinal)
            ? $"linux-musl-{architecture}" : $"linux-{architecture}";
    }
}
