using System.Runtime.InteropServices;
using LLama;
using LLama.Native;

namespace KvEvict.LLamaSharp;

/// <summary>A call of KvEvict for a context, which lives until the call is disposed.</summary>
internal sealed unsafe class ContextCall : IDisposable
{
    private readonly SafeLLamaContextHandle _context;
    private readonly bool _added;

    public ContextCall(LLamaContext context)
    {
        Native.CheckEnabled();
        ArgumentNullException.ThrowIfNull(context);
        _context = context.NativeHandle;
        _context.DangerousAddRef(ref _added);
        byte* why;
        Adapter = Native.kvevict_llamasharp_adapter(Handle, &why);
        if (Adapter != 0) return;
        string reason = Marshal.PtrToStringUTF8((nint)why)!;
        Dispose();
        throw new InvalidOperationException("The context is not evicted: " + reason);
    }

    public nint Adapter { get; }

    public nint Handle => _context.DangerousGetHandle();

    public void Dispose()
    {
        if (_added) _context.DangerousRelease();
    }

    public static bool IsEvictable(LLamaContext context) => IsEvictable(context, out _);

    public static bool IsEvictable(LLamaContext context, out string why)
    {
        byte* text;
        bool isEvictable = Native.kvevict_llamasharp_adapter(context.NativeHandle.DangerousGetHandle(), &text) != 0;
        why = Marshal.PtrToStringUTF8((nint)text)!;
        return isEvictable;
    }

    public KvEvictLLamaReport Evict(LLamaSeqId sequence, ReadOnlySpan<int> protect, ContextCall? target, LLamaSeqId targetSequence)
    {
        var report = new Native.Report { StructSize = (uint)sizeof(Native.Report) };
        fixed (int* positions = protect)
        {
            var sequenceOptions = new Native.SequenceOptions
            {
                StructSize = (uint)sizeof(Native.SequenceOptions),
                ProtectedPositions = positions,
                ProtectedPositionsLength = (nuint)protect.Length,
            };
            var options = new Native.EvictOptions
            {
                StructSize = (uint)sizeof(Native.EvictOptions),
                Target = target?.Adapter ?? 0,
                TargetSequence = (int)targetSequence,
                Sequence = &sequenceOptions,
            };
            int status = Native.kvevict_llama_evict(Adapter, (int)sequence, &options, &report);
            // Also an eviction that lost the sequence.
            if (target is null) Changed(sequence);
            else target.Changed(targetSequence);
            Native.Check(status);
        }
        return new KvEvictLLamaReport(report.Evicted != 0, report.InPlace != 0, (int)report.CellsBefore, (int)report.CellsAfter,
                                      (long)report.BytesBefore, (long)report.BytesAfter, TimeSpan.FromMilliseconds(report.TotalMs));
    }

    public nint Sequence(LLamaSeqId sequence)
    {
        nint handle;
        Native.Check(Native.kvevict_llama_sequence(Adapter, (int)sequence, &handle));
        return handle;
    }

    public int StoredLength(nint sequence, int layer, int kvHead)
    {
        ArgumentOutOfRangeException.ThrowIfNegative(layer);
        ArgumentOutOfRangeException.ThrowIfNegative(kvHead);
        uint length;
        CheckSequence(Native.kvevict_sequence_stored_length(sequence, (uint)layer, (uint)kvHead, &length));
        return (int)length;
    }

    /// <summary>Throws what a function of kvevict.h has to say.</summary>
    public static void CheckSequence(int status)
    {
        if (status != 0) throw new ArgumentException(Marshal.PtrToStringUTF8(Native.kvevict_last_error_message()));
    }

    public void Changed(LLamaSeqId sequence) => Native.kvevict_llamasharp_changed(Handle, (int)sequence);
}
