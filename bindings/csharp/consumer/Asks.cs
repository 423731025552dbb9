using System.Runtime.CompilerServices;
using KvEvict;

/// <summary>What a program may ask before it knows whether there is a native library.</summary>
internal static class Asks
{
    [ModuleInitializer]
    internal static void BeforeTheProgram() => Console.WriteLine(
        $"available: {KvEvictLibrary.IsAvailable(KvDevice.Cpu)}, parsed: {KvPolicy.TryParse("snapkv:budget=9", out _)}");
}
