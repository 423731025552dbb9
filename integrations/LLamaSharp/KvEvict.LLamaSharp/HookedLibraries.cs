using System.Runtime.InteropServices;
using LLama.Abstractions;
using LLama.Native;

namespace KvEvict.LLamaSharp;

/// <summary>
/// The libraries that another policy names. Each is loaded, and LLamaSharp gets KvEvict's library, which has all of
/// its functions.
/// </summary>
internal sealed class HookedLibraries(INativeLibrarySelectingPolicy inner) : INativeLibrarySelectingPolicy
{
    private const string Hooks = "libkvevict-llamasharp.so";
    private readonly List<string> _tried = [];

    /// <summary>The path of KvEvict's library, once libllama is loaded.</summary>
    public string? Loaded { get; private set; }

    public string WhyNot => $"LLamaSharp's libllama or {Hooks} could not be loaded. Tried: " + string.Join("; ", _tried);

    public IEnumerable<INativeLibrary> Apply(
        NativeLibraryConfig.Description description, SystemInfo systemInfo, NativeLogConfig.LLamaLogCallback? logCallback)
    {
        string[] folders = [.. description.SearchDirectories, AppContext.BaseDirectory];
        return inner.Apply(description, systemInfo, logCallback).Select(library => new Hooked(this, library, folders));
    }

    private string? Load(string llama, string[] folders)
    {
        string? path = folders.Select(folder => Path.Combine(folder, llama)).FirstOrDefault(File.Exists);
        if (path is null || !NativeLibrary.TryLoad(path, out _))
        {
            _tried.Add(path is null ? $"{llama}: no such file" : $"{path}: cannot be loaded");
            return null;
        }
        string[] places = [Path.Combine("runtimes", "linux-x64", "native"), ""];
        foreach (string folder in folders)
        {
            foreach (string place in places)
            {
                string hooks = Path.Combine(folder, place, Hooks);
                if (!File.Exists(hooks)) continue;
                if (NativeLibrary.TryLoad(hooks, out _)) return Loaded = hooks;
                _tried.Add($"{hooks}: cannot be loaded");
            }
        }
        _tried.Add($"{Hooks}: not in {string.Join(", ", folders)}");
        return null;
    }

    private sealed class Hooked(HookedLibraries owner, INativeLibrary inner, string[] folders) : INativeLibrary
    {
        public NativeLibraryMetadata? Metadata => inner.Metadata;

        public IEnumerable<string> Prepare(SystemInfo systemInfo, NativeLogConfig.LLamaLogCallback? logCallback) =>
            inner.Prepare(systemInfo, logCallback).Select(path => owner.Load(path, folders)).OfType<string>();
    }
}
