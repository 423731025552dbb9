using LLama;
using LLama.Abstractions;
using Microsoft.Extensions.Logging;

namespace KvEvict.LLamaSharp;

/// <summary>
/// An interactive executor that evicts when a chat has outgrown the context, where LLamaSharp's own drops the oldest
/// tokens or throws. It serves models that cannot shift positions too. The first TokensKeep tokens (of
/// <see cref="IInferenceParams"/>; all of the prompt if negative) stay.
/// </summary>
/// <param name="context">Created with a policy. Budget, margin and BatchSize together should not exceed its cells.</param>
/// <param name="logger">LLamaSharp's.</param>
/// <exception cref="ArgumentException">The context was created without a policy.</exception>
public class EvictingInteractiveExecutor(LLamaContext context, ILogger? logger = null) : InteractiveExecutor(Evictable(context), logger)
{
    /// <summary>How often tokens were evicted.</summary>
    public int Evictions { get; private set; }

    /// <summary>What the last eviction did.</summary>
    public KvEvictLLamaReport LastEviction { get; private set; }

    private static LLamaContext Evictable(LLamaContext context)
    {
        ArgumentNullException.ThrowIfNull(context);
        return context.IsEvictable
            ? context
            : throw new ArgumentException("the context was created without a policy: use weights.CreateContext(parameters, policy)", nameof(context));
    }

    /// <inheritdoc />
    protected override Task HandleRunOutOfContext(int tokensToKeep, IInferenceParams inferenceParams)
    {
        try
        {
            KvEvictLLamaReport report = Context.Evict(protect: [.. Enumerable.Range(0, Math.Max(tokensToKeep, 0))]);
            if (report.Evicted)
            {
                ++Evictions;
                LastEviction = report;
            }
        }
        catch (ArgumentException e) when (Context.StoredLength() < Context.ContextSize)
        {
            // A loaded chat has no queries yet by which its tokens could be scored, but there are free cells.
            KvEvictLLama.Log?.Invoke($"not evicted yet: {e.Message}");
        }
        return Task.CompletedTask;
    }
}
