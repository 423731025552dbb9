using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Text;
using LLama.Native;

[assembly: DisableRuntimeMarshalling]

namespace KvEvict.LLamaSharp;

/// <summary>The functions of libkvevict-llamasharp.so and of the libraries that it needs.</summary>
internal static unsafe class Native
{
    private const string Library = "kvevict-llamasharp";
    private static nint s_library;

    /// <summary>Uses the library that LLamaSharp has loaded from a path, and tells it of LLamaSharp's structs.</summary>
    public static void Start(string path)
    {
        s_library = NativeLibrary.Load(path);
        NativeLibrary.SetDllImportResolver(Assembly.GetExecutingAssembly(), (name, _, _) => name == Library ? s_library : 0);
        var parameters = LLamaContextParams.Default();
        byte* begin = (byte*)&parameters;
        kvevict_llamasharp_places((nuint)((byte*)&parameters.cb_eval - begin),
                                  (nuint)((byte*)&parameters.cb_eval_user_data - begin));
        kvevict_llamasharp_log(&WriteLine);
    }

    [UnmanagedCallersOnly]
    private static void WriteLine(byte* text, int isEviction)
    {
        string line = Marshal.PtrToStringUTF8((nint)text)!.TrimEnd('\n');
        try
        {
            if (KvEvictLLama.Log is { } log) log(line);
            else if (isEviction == 0) Console.Error.WriteLine(line);
        }
        catch (Exception e) when (e is not OutOfMemoryException)
        {
            // There is no caller that could be told.
        }
    }

    public static void CheckEnabled()
    {
        if (!KvEvictLLama.IsEnabled)
            throw new InvalidOperationException("Call KvEvictLLama.Enable() before anything else of LLamaSharp.");
    }

    public static void Check(int status)
    {
        if (status == (int)KvEvictLLamaStatus.Ok) return;
        string message = Marshal.PtrToStringUTF8(kvevict_llama_last_error_message())!;
        throw status == (int)KvEvictLLamaStatus.InvalidArgument
            ? new ArgumentException(message)
            : new KvEvictLLamaException((KvEvictLLamaStatus)status, message);
    }

    /// <summary>
    /// Asks for the next context of this thread, or for all, and throws what is wrong with the policy. Null takes that
    /// back.
    /// </summary>
    public static void Order(string? policy, KvEvictContextOptions options, bool forAll)
    {
        CheckEnabled();
        ArgumentOutOfRangeException.ThrowIfNegative(options.QueryRows);
        ArgumentOutOfRangeException.ThrowIfNegative(options.LogicalContextSize);
        fixed (byte* text = policy is null ? null : Utf8(policy))
        fixed (byte* calibration = options.Calibration.Span)
        {
            var adapter = new AdapterOptions
            {
                StructSize = (uint)sizeof(AdapterOptions),
                QueryRows = (uint)options.QueryRows,
                Calibration = calibration,
                CalibrationLength = (nuint)options.Calibration.Length,
            };
            if (text is not null)
            {
                nint kv;
                Check(kvevict_llama_create(text, &adapter, &kv));
                kvevict_llama_destroy(kv);
            }
            kvevict_llamasharp_order(text, &adapter, options.AutoEvict ? 1 : 0, (uint)options.LogicalContextSize,
                                     forAll ? 1 : 0);
        }
    }

    public static byte[] Utf8(string text) => Encoding.UTF8.GetBytes(text + '\0');

    [DllImport(Library)] internal static extern void kvevict_llamasharp_places(nuint callback, nuint userData);
    [DllImport(Library)] internal static extern void kvevict_llamasharp_order(byte* policy, AdapterOptions* options, int automatic, uint told, int forAll);
    [DllImport(Library)] internal static extern nint kvevict_llamasharp_adapter(nint ctx, byte** why);
    [DllImport(Library)] internal static extern int kvevict_llamasharp_automatic(nint ctx, int value);
    [DllImport(Library)] internal static extern void kvevict_llamasharp_changed(nint ctx, int seq);
    [DllImport(Library)] internal static extern void kvevict_llamasharp_log(delegate* unmanaged<byte*, int, void> write);

    [DllImport(Library)] internal static extern nint kvevict_llama_last_error_message();
    [DllImport(Library)] internal static extern int kvevict_llama_create(byte* policy, AdapterOptions* options, nint* kv);
    [DllImport(Library)] internal static extern void kvevict_llama_destroy(nint kv);
    [DllImport(Library)] internal static extern int kvevict_llama_evict(nint kv, int seq, EvictOptions* options, Report* report);
    [DllImport(Library)] internal static extern int kvevict_llama_end_prompt(nint kv, int seq);
    [DllImport(Library)] internal static extern int kvevict_llama_trim_to(nint kv, int seq, uint length);
    [DllImport(Library)] internal static extern int kvevict_llama_sequence(nint kv, int seq, nint* sequence);
    [DllImport(Library)] internal static extern int kvevict_llama_save(nint kv, int seq, byte* path, LLamaToken* tokens, nuint count);
    [DllImport(Library)] internal static extern int kvevict_llama_load(nint kv, int seq, byte* path, LLamaToken* tokens, nuint capacity, nuint* count);

    [DllImport(Library)] internal static extern nint kvevict_last_error_message();
    [DllImport(Library)] internal static extern int kvevict_sequence_stored_length(nint sequence, uint layer, uint head, uint* length);
    [DllImport(Library)] internal static extern int kvevict_sequence_logical_length(nint sequence, uint* length);
    [DllImport(Library)] internal static extern int kvevict_sequence_keep_positions(nint sequence, uint layer, uint head, int* positions, nuint capacity, nuint* count);

    /// <summary>kvevict_llama_options.</summary>
    internal struct AdapterOptions
    {
        public uint StructSize, QueryRows;
        public nint Context;
        public byte* Calibration;
        public nuint CalibrationLength;
    }

    /// <summary>kvevict_llama_evict_options.</summary>
    internal struct EvictOptions
    {
        public uint StructSize;
        public int Way;
        public nint Target;
        public int TargetSequence;
        public uint Reserved;
        public SequenceOptions* Sequence;
    }

    /// <summary>kvevict_evict_options.</summary>
    internal struct SequenceOptions
    {
        public uint StructSize, ByTable;
        public int* ProtectedPositions;
        public nuint ProtectedPositionsLength;
        public nint Inputs;
        public nuint InputsLength;
        public nint Undo;
        public nuint UndoBytes;
        public nint Ranges;
        public nuint RangesLength;
        public nint Destinations;
        public nuint DestinationsLength;
    }

    /// <summary>kvevict_llama_report.</summary>
    internal struct Report
    {
        public uint StructSize, Evicted, InPlace, CellsBefore, CellsAfter, Reserved;
        public ulong BytesBefore, BytesAfter;
        public double TotalMs, EvictMs;
    }
}
