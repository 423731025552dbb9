using LLama;
using LLama.Native;
using Xunit;
using static KvEvict.LLamaSharp.Tests.Models;

namespace KvEvict.LLamaSharp.Tests;

/// <summary>One sequence, compared with what llama.cpp computes after it has removed the same tokens itself.</summary>
public sealed class EvictTests
{
    private const int Prompt = 700, Budget = 200, Steps = 40;

    // llama.cpp rounds differently when the same rows lie in other cells: by 1.3e-5 on logits of this size in f32,
    // without flash attention.
    private const float Bound = 1e-4f;

    [Theory]
    [InlineData("snapkv:budget=200,scope=model", false)]
    [InlineData("snapkv:budget=200,scope=model", true)]
    public void Logits_are_those_of_llama_cpp_without_the_tokens(string policy, bool flashAttention)
    {
        LLamaWeights weights = Random();
        LLamaToken[] tokens = Tokens(Prompt + Steps);
        using LLamaContext evicted = weights.CreateContext(Parameters(1024, flashAttention), policy);
        using LLamaContext removed = weights.CreateContext(Parameters(1024, flashAttention));
        using LLamaContext moved = weights.CreateContext(Parameters(1024, flashAttention));
        using LLamaContext whole = weights.CreateContext(Parameters(1024, flashAttention));
        foreach (LLamaContext context in new[] { evicted, removed, whole }) Decode(context, tokens.AsSpan(0, Prompt), 0);

        KvEvictLLamaReport report = evicted.Evict();
        Assert.True(report.Evicted);
        Assert.True(report.InPlace);
        Assert.Equal((Prompt, Budget), (report.CellsBefore, report.CellsAfter));
        Assert.Equal(report.BytesBefore * Budget, report.BytesAfter * Prompt);
        Assert.Equal(Prompt, evicted.LogicalLength());
        int[] keep = evicted.KeepPositions();
        Assert.Equal(Budget, keep.Length);
        for (int layer = 0; layer < 3; ++layer)
            for (int head = 0; head < 2; ++head) Assert.Equal(keep, evicted.KeepPositions(layer: layer, kvHead: head));
        foreach (int gone in Enumerable.Range(0, Prompt).Except(keep))
            removed.NativeHandle.MemorySequenceRemove(LLamaSeqId.Zero, gone, gone + 1);
        // The same tokens, which llama.cpp itself has put into other cells: its own noise.
        moved.LoadState(removed.GetState(LLamaSeqId.Zero), LLamaSeqId.Zero);

        float error = 0, noise = 0, away = 0;
        for (int i = Prompt; i < Prompt + Steps; ++i)
        {
            float[] expected = Decode(removed, tokens.AsSpan(i, 1), i);
            float[] logits = Decode(evicted, tokens.AsSpan(i, 1), i);
            error = Math.Max(error, Distance(expected, logits));
            noise = Math.Max(noise, Distance(expected, Decode(moved, tokens.AsSpan(i, 1), i)));
            away = Math.Max(away, Distance(logits, Decode(whole, tokens.AsSpan(i, 1), i)));
        }
        float bound = flashAttention ? 2 * noise : Bound;
        Assert.True(error <= bound, $"{error} from the reference; llama.cpp itself: {noise}");
        Assert.True(away > 20 * bound, $"the evicted tokens do not matter: {away}");
    }

    [Fact]
    public void Protected_positions_stay()
    {
        using LLamaContext context = Random().CreateContext(Parameters(1024), "snapkv:budget=200");
        Decode(context, Tokens(Prompt), 0);
        int[] protect = [3, 57, 58, 311];
        Assert.True(context.Evict(protect: protect).Evicted);
        for (int head = 0; head < 2; ++head) Assert.Empty(protect.Except(context.KeepPositions(layer: 1, kvHead: head)));
    }

    [Fact]
    public void A_context_evicts_by_itself_when_it_is_told_to()
    {
        LLamaWeights weights = Random();
        LLamaToken[] tokens = Tokens(1500);
        using LLamaContext automatic = weights.CreateContext(Parameters(512), "snapkv:budget=200,margin=50",
                                                             new KvEvictContextOptions { AutoEvict = true });
        using LLamaContext manual = weights.CreateContext(Parameters(512), "snapkv:budget=200,margin=50");
        Assert.True(automatic.AutoEvict);
        Assert.False(manual.AutoEvict);
        List<string> lines = [];
        KvEvictLLama.Log = lines.Add;
        try
        {
            for (int at = 0; at < tokens.Length; at += 100)
            {
                float[] logits = Decode(automatic, tokens.AsSpan(at, 100), at);
                Assert.Equal(logits, Decode(manual, tokens.AsSpan(at, 100), at));
                manual.Evict();
                Assert.Equal(manual.KeepPositions(layer: 2, kvHead: 1), automatic.KeepPositions(layer: 2, kvHead: 1));
                Assert.InRange(automatic.KeepPositions().Length, 0, 250);
            }
            Assert.Contains(lines, line => line.Contains("300 -> 200 cells", StringComparison.Ordinal));
        }
        finally
        {
            KvEvictLLama.Log = null;
        }
        automatic.AutoEvict = false;
        Decode(automatic, tokens.AsSpan(0, 100), tokens.Length);
        Assert.True(automatic.KeepPositions().Length > 250);
    }

    [Fact]
    public void A_smaller_context_takes_what_stays()
    {
        LLamaWeights weights = Random();
        LLamaToken[] tokens = Tokens(Prompt + Steps);
        using LLamaContext large = weights.CreateContext(Parameters(1024), "snapkv:budget=200");
        using LLamaContext small = weights.CreateContext(Parameters(256), "snapkv:budget=200");
        Decode(large, tokens.AsSpan(0, Prompt), 0);
        Assert.True(large.EvictTo(small).Evicted);
        Assert.Equal(Prompt, large.KeepPositions().Length);
        Assert.Equal(Budget, small.KeepPositions().Length);
        large.Evict();
        for (int i = Prompt; i < Prompt + Steps; ++i)
        {
            Assert.InRange(Distance(Decode(large, tokens.AsSpan(i, 1), i), Decode(small, tokens.AsSpan(i, 1), i)), 0, Bound);
        }
    }

    [Fact]
    public void Tokens_behind_an_eviction_can_be_taken_back()
    {
        LLamaToken[] tokens = Tokens(Prompt + Steps);
        using LLamaContext context = Random().CreateContext(Parameters(1024), "snapkv:budget=200");
        Decode(context, tokens.AsSpan(0, Prompt), 0);
        context.Evict();
        float[] once = Decode(context, tokens.AsSpan(Prompt), Prompt);
        context.TrimTo(Prompt + 5);
        Assert.Equal(Prompt + 5, context.LogicalLength());
        float[] twice = Decode(context, tokens.AsSpan(Prompt + 5), Prompt + 5);
        Assert.InRange(Distance(once, twice), 0, Bound);
        Assert.Contains(Prompt.ToString(), Assert.Throws<ArgumentException>(() => context.TrimTo(Prompt - 1)).Message);
    }

    [Fact]
    public void A_saved_sequence_continues_in_another_context()
    {
        LLamaWeights weights = Random();
        LLamaToken[] tokens = Tokens(Prompt + Steps);
        string path = Path.Combine(Path.GetTempPath(), Path.GetRandomFileName());
        using LLamaContext first = weights.CreateContext(Parameters(1024), "snapkv:budget=200");
        Decode(first, tokens.AsSpan(0, Prompt), 0);
        first.Evict();
        first.SaveEvicted(path, tokens.AsSpan(0, Prompt));
        using LLamaContext second = weights.CreateContext(Parameters(512), "snapkv:budget=200");
        try
        {
            Assert.Equal(tokens[..Prompt], second.LoadEvicted(path));
            Assert.Equal(first.KeepPositions(layer: 1), second.KeepPositions(layer: 1));
            for (int i = Prompt; i < Prompt + Steps; ++i)
            {
                Assert.InRange(Distance(Decode(first, tokens.AsSpan(i, 1), i), Decode(second, tokens.AsSpan(i, 1), i)), 0, Bound);
            }
            Assert.Equal(Budget, second.Evict().CellsAfter);
            File.WriteAllBytes(path, File.ReadAllBytes(path)[..5000]);
            Assert.Throws<ArgumentException>(() => second.LoadEvicted(path));
        }
        finally
        {
            File.Delete(path);
        }
        var missing = Assert.Throws<KvEvictLLamaException>(() => second.LoadEvicted(path));
        Assert.Equal(KvEvictLLamaStatus.Unavailable, missing.Status);
    }

    [Fact]
    public void A_state_of_the_whole_context_has_its_only_sequence_as_it_was_evicted()
    {
        LLamaToken[] tokens = Tokens(Prompt + Steps);
        using LLamaContext context = Random().CreateContext(Parameters(1024), "snapkv:budget=200");
        Decode(context, tokens.AsSpan(0, Prompt), 0);
        context.Evict();
        using LLamaContext.State state = context.GetState();
        float[] once = Decode(context, tokens.AsSpan(Prompt), Prompt);
        context.LoadState(state);
        Assert.Equal((Prompt, Budget), (context.LogicalLength(), context.KeepPositions(layer: 1).Length));
        Assert.InRange(Distance(once, Decode(context, tokens.AsSpan(Prompt), Prompt)), 0, Bound);
        Assert.Equal(Budget, context.Evict().CellsAfter);
    }

    [Fact]
    public void A_prompt_that_has_ended_can_stay()
    {
        using LLamaContext context = Random().CreateContext(Parameters(1024), "snapkv:budget=200,prompt=pinned");
        Decode(context, Tokens(100), 0);
        context.EndPrompt();
        Decode(context, Tokens(500), 100);
        Assert.Equal(200, context.Evict().CellsAfter);
        Assert.Equal(Enumerable.Range(0, 100), context.KeepPositions(layer: 1, kvHead: 1)[..100]);
    }
}
