using System.Runtime.InteropServices;
using LLama;
using LLama.Abstractions;
using LLama.Batched;
using LLama.Native;
using Microsoft.Extensions.Logging;

namespace KvEvict.LLamaSharp;

/// <summary>
/// Evictions of LLamaSharp's contexts and conversations. A sequence is <see cref="LLamaSeqId"/> 0 unless a call names
/// another. A wrong argument is an <see cref="ArgumentException"/>, a context without a policy an
/// <see cref="InvalidOperationException"/>, and all else a <see cref="KvEvictLLamaException"/>. A call that throws has
/// changed nothing, unless its message begins with "sequence lost: ". Calls belong to the thread that uses the context.
/// </summary>
public static unsafe class LLamaContextExtensions
{
    /// <summary>Creates a context whose sequences can be evicted.</summary>
    /// <param name="weights">The model.</param>
    /// <param name="parameters">As for LLamaSharp's own CreateContext.</param>
    /// <param name="policy">A policy's text form, as <c>snapkv:budget=2048,margin=64</c>.</param>
    /// <param name="options">Null for the defaults: evictions by calls only.</param>
    /// <param name="logger">LLamaSharp's.</param>
    public static LLamaContext CreateContext(this LLamaWeights weights, IContextParams parameters, string policy,
                                             KvEvictContextOptions? options = null, ILogger? logger = null) =>
        Create(policy, options, () => weights.CreateContext(parameters, logger), context => context);

    /// <summary>Creates a batched executor whose conversations can be evicted.</summary>
    /// <param name="weights">The model.</param>
    /// <param name="parameters">As for LLamaSharp's own constructor.</param>
    /// <param name="policy">A policy's text form.</param>
    /// <param name="options">Null for the defaults: evictions by calls only.</param>
    public static BatchedExecutor CreateBatchedExecutor(this LLamaWeights weights, IContextParams parameters, string policy,
                                                        KvEvictContextOptions? options = null) =>
        Create(policy, options, () => new BatchedExecutor(weights, parameters), executor => executor.Context);

    /// <summary>Evicts a sequence, if it exceeds the budget and margin of the context's policy.</summary>
    /// <param name="context">Created with a policy.</param>
    /// <param name="sequence">The sequence.</param>
    /// <param name="protect">Positions that must stay, strictly ascending.</param>
    public static KvEvictLLamaReport Evict(this LLamaContext context, LLamaSeqId sequence = default,
                                           ReadOnlySpan<int> protect = default)
    {
        using var call = new ContextCall(context);
        return call.Evict(sequence, protect, null, default);
    }

    /// <summary>
    /// Evicts a sequence into another context, usually with a smaller ContextSize: the way to give memory back. The
    /// sequence here does not change; disposing this context frees its cache.
    /// </summary>
    /// <param name="context">Created with a policy.</param>
    /// <param name="target">Another context of the same weights, cache types and flash attention, with a policy.</param>
    /// <param name="sequence">The sequence that is evicted.</param>
    /// <param name="targetSequence">The sequence that is replaced in the target.</param>
    public static KvEvictLLamaReport EvictTo(this LLamaContext context, LLamaContext target, LLamaSeqId sequence = default,
                                             LLamaSeqId targetSequence = default)
    {
        using var call = new ContextCall(context);
        using var into = new ContextCall(target);
        return call.Evict(sequence, default, into, targetSequence);
    }

    /// <summary>How many tokens a layer and KV head holds: the sequence's cells.</summary>
    /// <param name="context">Created with a policy.</param>
    /// <param name="sequence">The sequence.</param>
    /// <param name="layer">Counted over the layers that are evicted.</param>
    /// <param name="kvHead">The KV head.</param>
    public static int StoredLength(this LLamaContext context, LLamaSeqId sequence = default, int layer = 0, int kvHead = 0)
    {
        using var call = new ContextCall(context);
        return call.StoredLength(call.Sequence(sequence), layer, kvHead);
    }

    /// <summary>The positions that a layer and KV head holds, ascending.</summary>
    /// <param name="context">Created with a policy.</param>
    /// <param name="sequence">The sequence.</param>
    /// <param name="layer">Counted over the layers that are evicted.</param>
    /// <param name="kvHead">The KV head.</param>
    public static int[] KeepPositions(this LLamaContext context, LLamaSeqId sequence = default, int layer = 0, int kvHead = 0)
    {
        using var call = new ContextCall(context);
        nint handle = call.Sequence(sequence);
        var positions = new int[call.StoredLength(handle, layer, kvHead)];
        nuint count;
        fixed (int* p = positions)
        {
            ContextCall.CheckSequence(Native.kvevict_sequence_keep_positions(handle, (uint)layer, (uint)kvHead, p,
                                                                             (nuint)positions.Length, &count));
        }
        return positions;
    }

    /// <summary>How many tokens a sequence has seen, evicted or not: the position of the next one.</summary>
    /// <param name="context">Created with a policy.</param>
    /// <param name="sequence">The sequence.</param>
    public static int LogicalLength(this LLamaContext context, LLamaSeqId sequence = default)
    {
        using var call = new ContextCall(context);
        uint length;
        ContextCall.CheckSequence(Native.kvevict_sequence_logical_length(call.Sequence(sequence), &length));
        return (int)length;
    }

    /// <summary>Takes back the last tokens of a sequence, those behind its last eviction at most.</summary>
    /// <param name="context">Created with a policy.</param>
    /// <param name="length">The logical length to return to.</param>
    /// <param name="sequence">The sequence.</param>
    public static void TrimTo(this LLamaContext context, int length, LLamaSeqId sequence = default)
    {
        ArgumentOutOfRangeException.ThrowIfNegative(length);
        using var call = new ContextCall(context);
        Native.Check(Native.kvevict_llama_trim_to(call.Adapter, (int)sequence, (uint)length));
    }

    /// <summary>Declares the tokens decoded so far to be the prompt, for policies that treat it otherwise.</summary>
    /// <param name="context">Created with a policy.</param>
    /// <param name="sequence">The sequence.</param>
    public static void EndPrompt(this LLamaContext context, LLamaSeqId sequence = default)
    {
        using var call = new ContextCall(context);
        Native.Check(Native.kvevict_llama_end_prompt(call.Adapter, (int)sequence));
    }

    /// <summary>Writes a sequence to a file: the cells that stayed, and what KvEvict knows of them.</summary>
    /// <param name="context">Created with a policy.</param>
    /// <param name="path">The file, which is replaced at once when all is written.</param>
    /// <param name="tokens">What <see cref="LoadEvicted"/> returns.</param>
    /// <param name="sequence">The sequence.</param>
    public static void SaveEvicted(this LLamaContext context, string path, ReadOnlySpan<LLamaToken> tokens = default,
                                   LLamaSeqId sequence = default)
    {
        ArgumentException.ThrowIfNullOrEmpty(path);
        using var call = new ContextCall(context);
        fixed (byte* p = Native.Utf8(path))
        fixed (LLamaToken* t = tokens)
            Native.Check(Native.kvevict_llama_save(call.Adapter, (int)sequence, p, t, (nuint)tokens.Length));
    }

    /// <summary>
    /// Replaces a sequence by one that <see cref="SaveEvicted"/> saved, in a context of the same model, cache types
    /// and flash attention; its ContextSize may be smaller. Queries are not saved: a policy that scores by them
    /// evicts again once it has seen as many new tokens as its window.
    /// </summary>
    /// <returns>The tokens that were saved with it.</returns>
    /// <param name="context">Created with a policy.</param>
    /// <param name="path">The file.</param>
    /// <param name="sequence">The sequence.</param>
    public static LLamaToken[] LoadEvicted(this LLamaContext context, string path, LLamaSeqId sequence = default)
    {
        ArgumentException.ThrowIfNullOrEmpty(path);
        using var call = new ContextCall(context);
        long size = File.Exists(path) ? new FileInfo(path).Length : 0;
        var tokens = new LLamaToken[(int)Math.Min(size / sizeof(LLamaToken), Array.MaxLength)];
        nuint count;
        fixed (byte* p = Native.Utf8(path))
        fixed (LLamaToken* t = tokens)
            Native.Check(Native.kvevict_llama_load(call.Adapter, (int)sequence, p, t, (nuint)tokens.Length, &count));
        call.Changed(sequence);
        return tokens[..(int)count];
    }

    /// <summary>Evicts a conversation, if it exceeds the budget and margin of its executor's policy.</summary>
    /// <param name="conversation">Of an executor that CreateBatchedExecutor() created.</param>
    /// <param name="protect">Positions that must stay, strictly ascending.</param>
    public static KvEvictLLamaReport Evict(this Conversation conversation, ReadOnlySpan<int> protect = default)
    {
        ArgumentNullException.ThrowIfNull(conversation);
        return conversation.Executor.Context.Evict(conversation.ConversationId, protect);
    }

    /// <summary>Properties of contexts.</summary>
    extension(LLamaContext context)
    {
        /// <summary>Whether the context was created with a policy that its model takes.</summary>
        public bool IsEvictable => KvEvictLLama.IsEnabled && ContextCall.IsEvictable(context);

        /// <summary>Whether sequences are evicted after every decode whose logits are asked for.</summary>
        public bool AutoEvict
        {
            get
            {
                using var call = new ContextCall(context);
                return Native.kvevict_llamasharp_automatic(call.Handle, -1) != 0;
            }
            set
            {
                using var call = new ContextCall(context);
                Native.kvevict_llamasharp_automatic(call.Handle, value ? 1 : 0);
            }
        }
    }

    private static T Create<T>(string policy, KvEvictContextOptions? options, Func<T> create, Func<T, LLamaContext> contextOf)
        where T : IDisposable
    {
        options ??= new KvEvictContextOptions();
        ArgumentNullException.ThrowIfNull(policy);
        Native.Order(policy, options, forAll: false);
        T made;
        try
        {
            made = create();
        }
        finally
        {
            // If LLamaSharp threw before it made the context, the next one is not to get the policy.
            Native.Order(null, options, forAll: false);
        }
        if (!ContextCall.IsEvictable(contextOf(made), out string why))
        {
            made.Dispose();
            throw new KvEvictLLamaException(KvEvictLLamaStatus.Unsupported, why);
        }
        return made;
    }
}
