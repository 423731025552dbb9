using LLama;
using LLama.Batched;
using LLama.Native;
using Xunit;
using static KvEvict.LLamaSharp.Tests.Models;

namespace KvEvict.LLamaSharp.Tests;

/// <summary>Conversations of a batched executor, which share a unified cache or have streams of their own.</summary>
public sealed class BatchedTests
{
    private const string Policy = "snapkv:budget=200";
    private const float Bound = 1e-4f;

    private static BatchedExecutor Executor(bool unified, KvEvictContextOptions? options = null)
    {
        LLama.Common.ModelParams parameters = Parameters(4096);
        parameters.SeqMax = 4;
        parameters.KVUnified = unified;
        parameters.BatchSize = 2048;
        return Random().CreateBatchedExecutor(parameters, Policy, options);
    }

    private static async Task Infer(BatchedExecutor executor)
    {
        while (executor.BatchedTokenCount > 0) Assert.Equal(DecodeResult.Ok, await executor.Infer());
    }

    /// <summary>The logits behind more tokens of a conversation alone in a context of its own.</summary>
    private static float[] Alone(LLamaToken[] prompt, LLamaToken[] more)
    {
        using LLamaContext context = Random().CreateContext(Parameters(1024), Policy);
        Decode(context, prompt, 0);
        context.Evict();
        return Decode(context, more, prompt.Length);
    }

    [Theory]
    [InlineData(true)]
    [InlineData(false)]
    public async Task Each_conversation_is_evicted_as_if_it_were_alone(bool unified)
    {
        using BatchedExecutor executor = Executor(unified);
        LLamaToken[][] prompts = [Tokens(500, 1), Tokens(600, 2), Tokens(400, 3)];
        LLamaToken[] more = Tokens(20, 9);
        Conversation[] conversations = [.. prompts.Select(_ => executor.Create())];
        foreach ((Conversation conversation, LLamaToken[] prompt) in conversations.Zip(prompts)) conversation.Prompt(prompt);
        await Infer(executor);
        foreach ((Conversation conversation, LLamaToken[] prompt) in conversations.Zip(prompts))
        {
            KvEvictLLamaReport report = conversation.Evict();
            Assert.Equal((true, prompt.Length, 200), (report.Evicted, report.CellsBefore, report.CellsAfter));
        }
        foreach (Conversation conversation in conversations) conversation.Prompt(more);
        await Infer(executor);
        foreach ((Conversation conversation, LLamaToken[] prompt) in conversations.Zip(prompts))
            Assert.InRange(Distance(Alone(prompt, more), conversation.Sample().ToArray()), 0, Bound);
        Assert.Equal(200, conversations[1].Evict().CellsAfter);
    }

    [Theory]
    [InlineData(true)]
    [InlineData(false)]
    public async Task A_fork_of_an_evicted_conversation_goes_its_own_way(bool unified)
    {
        using BatchedExecutor executor = Executor(unified);
        LLamaToken[] prompt = Tokens(500);
        Conversation source = executor.Create();
        source.Prompt(prompt);
        await Infer(executor);
        source.Evict();
        Conversation fork = source.Fork();
        source.Prompt(Tokens(120, 5));
        fork.Prompt(Tokens(150, 6));
        await Infer(executor);
        float[] before = source.Sample().ToArray();
        Assert.Equal((true, 350, 200), Cells(fork.Evict()));
        Assert.InRange(Distance(Alone(prompt, Tokens(120, 5)), before), 0, Bound);
        source.Prompt(Tokens(5, 7));
        await Infer(executor);
        Assert.InRange(Distance(Alone(prompt, [.. Tokens(120, 5), .. Tokens(5, 7)]), source.Sample().ToArray()), 0, Bound);
    }

    private static (bool, int, int) Cells(KvEvictLLamaReport report) => (report.Evicted, report.CellsBefore, report.CellsAfter);

    [Fact]
    public async Task Conversations_evict_by_themselves()
    {
        using BatchedExecutor executor = Executor(true, new KvEvictContextOptions { AutoEvict = true });
        Conversation[] conversations = [executor.Create(), executor.Create()];
        for (int i = 0; i < 2; ++i) conversations[i].Prompt(Tokens(400 + i, i));
        await Infer(executor);
        foreach (Conversation conversation in conversations)
            Assert.Equal(200, executor.Context.KeepPositions(conversation.ConversationId).Length);
    }

    [Theory]
    [InlineData(true)]
    [InlineData(false)]
    public async Task Tokens_behind_an_eviction_can_be_rewound(bool unified)
    {
        using BatchedExecutor executor = Executor(unified);
        LLamaToken[] prompt = Tokens(500);
        Conversation conversation = executor.Create();
        conversation.Prompt(prompt);
        await Infer(executor);
        conversation.Evict();
        conversation.Prompt(Tokens(30, 5));
        await Infer(executor);
        conversation.Rewind(20);
        conversation.Prompt(Tokens(20, 6));
        await Infer(executor);
        Assert.InRange(Distance(Alone(prompt, [.. Tokens(30, 5)[..10], .. Tokens(20, 6)]), conversation.Sample().ToArray()), 0, Bound);
    }

    [Fact]
    public async Task A_rewind_to_before_the_eviction_fails_and_never_answers_differently()
    {
        using BatchedExecutor executor = Executor(true);
        Conversation conversation = executor.Create();
        conversation.Prompt(Tokens(500));
        await Infer(executor);
        conversation.Evict();
        conversation.Rewind(100);
        conversation.Prompt(Tokens(5));
        Assert.True(await executor.Infer() < DecodeResult.Ok);
        Assert.Equal(500, executor.Context.LogicalLength(conversation.ConversationId));
    }

    [Fact]
    public async Task A_saved_conversation_is_loaded_as_it_was_evicted()
    {
        using BatchedExecutor executor = Executor(true);
        LLamaToken[] prompt = Tokens(500);
        Conversation conversation = executor.Create();
        conversation.Prompt(prompt);
        await Infer(executor);
        conversation.Evict();
        int[] keep = executor.Context.KeepPositions(conversation.ConversationId);
        Conversation.State state = conversation.Save();
        string path = Path.Combine(Path.GetTempPath(), Path.GetRandomFileName());
        conversation.Save(path);
        conversation.Dispose();
        foreach (Conversation loaded in new[] { executor.Load(state), executor.Load(path) })
        {
            Assert.Equal(500, loaded.TokenCount);
            Assert.Equal(keep, executor.Context.KeepPositions(loaded.ConversationId));
            loaded.Prompt(Tokens(60, 8));
            await Infer(executor);
            Assert.InRange(Distance(Alone(prompt, Tokens(60, 8)), loaded.Sample().ToArray()), 0, Bound);
            Assert.Equal(200, loaded.Evict().CellsAfter);
        }
        File.Delete(path);
    }
}
