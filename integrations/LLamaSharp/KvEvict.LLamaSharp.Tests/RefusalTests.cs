using LLama;
using LLama.Native;
using Xunit;
using static KvEvict.LLamaSharp.Tests.Models;

namespace KvEvict.LLamaSharp.Tests;

/// <summary>What is refused, by which exception, and that nothing breaks by it.</summary>
public sealed class RefusalTests
{
    [Theory]
    [InlineData("snapkv:budget=0", "budget")]
    [InlineData("snapkv:bugdet=9", "bugdet")]
    [InlineData("nonsense", "nonsense")]
    public void A_wrong_policy_is_a_wrong_argument(string policy, string named) =>
        Assert.Contains(named, Assert.Throws<ArgumentException>(() => Random().CreateContext(Parameters(64), policy)).Message);

    [Theory]
    [InlineData("pyramidkv:budget=64")]
    [InlineData("snapkv:budget=64,rotate=yes")]
    public void A_policy_that_llama_cpp_cannot_hold_is_refused(string policy)
    {
        var refused = Assert.Throws<KvEvictLLamaException>(() => Random().CreateContext(Parameters(64), policy));
        Assert.Equal(KvEvictLLamaStatus.Unsupported, refused.Status);
        Assert.Throws<KvEvictLLamaException>(() => KvEvictLLama.EvictEveryContext(policy));
    }

    [Fact]
    public void A_policy_that_was_not_used_is_not_anothers()
    {
        Assert.ThrowsAny<Exception>(() => Random().CreateContext(null!, "snapkv:budget=64"));
        LLama.Common.ModelParams parameters = Parameters(64);
        parameters.TypeV = GGMLType.GGML_TYPE_Q8_0; // llama.cpp refuses that without flash attention
        Assert.ThrowsAny<Exception>(() => Random().CreateContext(parameters, "snapkv:budget=64"));
        using LLamaContext plain = Random().CreateContext(Parameters(64));
        Assert.False(plain.IsEvictable);
    }

    [Fact]
    public void A_context_without_a_policy_says_so()
    {
        using LLamaContext plain = Random().CreateContext(Parameters(64));
        Assert.Contains("without a policy", Assert.Throws<InvalidOperationException>(() => plain.Evict()).Message);
        Assert.Throws<InvalidOperationException>(() => plain.AutoEvict);
        Assert.Contains("without a policy", Assert.Throws<ArgumentException>(() => new EvictingInteractiveExecutor(plain)).Message);
        Assert.Throws<ArgumentNullException>(() => ((LLamaContext)null!).Evict());
    }

    [Fact]
    public void A_disposed_context_throws()
    {
        LLamaContext context = Random().CreateContext(Parameters(64), "snapkv:budget=64");
        context.Dispose();
        context.Dispose();
        Assert.Throws<ObjectDisposedException>(() => context.Evict());
    }

    [Fact]
    public void Wrong_arguments_name_what_is_wrong()
    {
        using LLamaContext context = Random().CreateContext(Parameters(512), "snapkv:budget=64");
        Assert.Throws<ArgumentException>(() => context.KeepPositions()); // nothing is decoded
        Decode(context, Tokens(200), 0);
        Assert.Contains("seq", Assert.Throws<ArgumentException>(() => context.Evict((LLamaSeqId)1)).Message);
        Assert.Contains("layer", Assert.Throws<ArgumentException>(() => context.KeepPositions(layer: 3)).Message);
        Assert.Contains("head", Assert.Throws<ArgumentException>(() => context.KeepPositions(kvHead: 2)).Message);
        Assert.Throws<ArgumentOutOfRangeException>(() => context.KeepPositions(layer: -1));
        Assert.Throws<ArgumentOutOfRangeException>(() => context.TrimTo(-1));
        Assert.Throws<ArgumentException>(() => context.SaveEvicted(""));
        Assert.Contains("protected", Assert.Throws<ArgumentException>(() => context.Evict(protect: [5, 5])).Message);
        Assert.Equal(200, context.KeepPositions().Length);
        Assert.Equal(64, context.Evict().CellsAfter);
    }

    [Fact]
    public void Contexts_end_in_any_order_or_by_the_collector()
    {
        for (int i = 0; i < 30; ++i)
        {
            LLamaContext first = Random().CreateContext(Parameters(256), "snapkv:budget=64");
            LLamaContext second = Random().CreateContext(Parameters(256), "knorm:budget=64");
            Decode(first, Tokens(100, i), 0);
            Decode(second, Tokens(100, i), 0);
            Assert.Equal(64, second.Evict().CellsAfter);
            if (i % 3 == 0) second.Dispose();
            Assert.Equal(64, first.Evict().CellsAfter);
            if (i % 3 == 1) first.Dispose();
        }
        GC.Collect();
        GC.WaitForPendingFinalizers();
    }

    [Fact]
    public void Enable_may_be_called_again()
    {
        KvEvictLLama.Enable();
        Assert.True(KvEvictLLama.IsEnabled);
    }
}
