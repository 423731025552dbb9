using System.Runtime.CompilerServices;

/// <summary>With LATE in the environment something of LLamaSharp comes first.</summary>
internal static class Late
{
    [ModuleInitializer]
    internal static void BeforeTheProgram()
    {
        if (Environment.GetEnvironmentVariable("LATE") is not null) LLama.Native.NativeApi.llama_max_devices();
    }
}
