using System.Buffers;
using System.Runtime.CompilerServices;
using System.Runtime.ExceptionServices;
using System.Runtime.InteropServices;

// The caller's views are pinned, so pointers to references are fine.
#pragma warning disable CS8500

namespace KvEvict;

// A call of KvSequence.Prefill. Its arrays are pinned until it ends; native code reads them again
// behind each chunk.
internal sealed unsafe class PrefillCall(KvSequence sequence, KvPrefill prompt, KvView* views, int viewCount)
{
    private readonly kvevict_view[] _views = new kvevict_view[Math.Max(viewCount, prompt.Evict.Inputs.Length)];
    private readonly kvevict_signal_inputs[] _inputs = new kvevict_signal_inputs[prompt.Evict.Inputs.Length];
    private readonly NativeInputs[] _planes = new NativeInputs[prompt.Evict.Inputs.Length];
    private readonly kvevict_token_range[] _ranges = new kvevict_token_range[prompt.Evict.Ranges.Length];
    private int _done;
    private ExceptionDispatchInfo? _failure;

    internal static KvPrefillReport Run(KvSequence sequence, KvPrefill prompt, ReadOnlySpan<KvView> views,
                                        PagedSequenceHandle? cached, KvRegion workspace, nint stream)
    {
        if (!prompt.Evict.Destinations.IsEmpty)
            throw new ArgumentException("Destinations are set: KvSequence.Evict takes them", nameof(prompt));
        fixed (KvView* first = views)
            return new PrefillCall(sequence, prompt, first, views.Length).Run(cached, workspace, stream);
    }

    private ReadOnlySpan<KvView> Views => MemoryMarshal.CreateReadOnlySpan(ref *views, viewCount);

    private KvPrefillReport Run(PagedSequenceHandle? cached, KvRegion workspace, nint stream)
    {
        Write(0, evicts: false);
        kvevict_prefill_report report = new() { struct_size = (uint)sizeof(kvevict_prefill_report) };
        GCHandle self = GCHandle.Alloc(this);
        bool held = false;
        try
        {
            cached?.DangerousAddRef(ref held);
            using MemoryHandle mustStay = prompt.Evict.ProtectedPositions.Pin();
            fixed (kvevict_view* nativeViews = _views)
            fixed (kvevict_signal_inputs* nativeInputs = _inputs)
            fixed (NativeInputs* nativePlanes = _planes) // the inputs point to them
            fixed (kvevict_token_range* nativeRanges = _ranges)
            {
                kvevict_evict_options evict;
                prompt.Evict.Write(new NativeEviction
                {
                    Options = &evict,
                    Inputs = nativeInputs,
                    Ranges = nativeRanges,
                    ProtectedPositions = (int*)mustStay.Pointer,
                }, sequence.Context);
                kvevict_prefill_options options;
                prompt.Fill(&options);
                options.forward = &Forward;
                options.user_data = (void*)GCHandle.ToIntPtr(self);
                options.views = cached is null ? nativeViews : null;
                options.views_len = cached is null ? (nuint)viewCount : 0;
                options.cached = NativeHandle.Pointer(cached);
                options.evict = &evict;
                options.workspace = (void*)workspace.Resolve(sequence.Context, nameof(workspace));
                options.workspace_bytes = (nuint)workspace.Bytes;
                Native.kvevict_sequence_prefill(sequence.Handle, &options, &report, stream);
            }
        }
        catch (KvEvictException) when (_failure is not null)
        {
            _failure.Throw();
        }
        finally
        {
            if (held) cached!.DangerousRelease();
            self.Free();
            KeepAlive();
            GC.KeepAlive(workspace.Owner);
        }
        return new KvPrefillReport((int)report.n_chunks, (int)report.n_evictions, (int)report.peak_tokens,
                                   (long)report.peak_bytes, (long)report.end_bytes);
    }

    [UnmanagedCallersOnly(CallConvs = [typeof(CallConvCdecl)])]
    private static KvStatus Forward(uint firstToken, uint tokenCount, void* userData)
    {
        var call = (PrefillCall)GCHandle.FromIntPtr((nint)userData).Target!;
        try
        {
            call.Read((int)firstToken, (int)tokenCount);
            return KvStatus.Ok;
        }
        catch (Exception e)
        {
            call._failure = ExceptionDispatchInfo.Capture(e);
            return KvStatus.Internal;
        }
    }

    private void Read(int firstToken, int tokenCount)
    {
        prompt.Forward(firstToken, tokenCount);
        _done += tokenCount;
        // The chunk's rows are there, but not appended yet.
        Write(tokenCount, prompt.EvictEachChunk || _done == prompt.TokenCount);
    }

    private void Write(int ahead, bool evicts)
    {
        fixed (kvevict_view* nativeViews = _views)
        fixed (kvevict_signal_inputs* nativeInputs = _inputs)
        fixed (NativeInputs* nativePlanes = _planes)
        {
            sequence.Write(Views, evicts ? prompt.Evict.Inputs.Span : default, nativeViews, nativeInputs, nativePlanes, ahead);
        }
    }

    private void KeepAlive()
    {
        foreach (KvView view in Views) GC.KeepAlive(view);
        prompt.Evict.KeepAlive();
    }
}
