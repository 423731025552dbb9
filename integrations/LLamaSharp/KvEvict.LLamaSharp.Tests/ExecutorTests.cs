using System.Text;
using LLama;
using LLama.Common;
using LLama.Exceptions;
using LLama.Native;
using LLama.Sampling;
using Xunit;
using static KvEvict.LLamaSharp.Tests.Models;

namespace KvEvict.LLamaSharp.Tests;

/// <summary>LLamaSharp's executors when a chat outgrows the context.</summary>
public sealed class ExecutorTests
{
    private const string Prompt = "abcdefgh ijklmnop qrstuvw xyz";

    // The likeliest tokens, but never the end of the text, which random weights like as much as any other.
    private static InferenceParams Greedy(int tokens) => new()
    {
        MaxTokens = tokens, TokensKeep = 8,
        SamplingPipeline = new DefaultSamplingPipeline { TopK = 1, LogitBias = new Dictionary<LLamaToken, float> { [2] = -1e9f } },
    };

    private static async Task<int> Count(IAsyncEnumerable<string> pieces)
    {
        int count = 0;
        await foreach (string _ in pieces) ++count;
        return count;
    }

    private static ModelParams Small(uint cells = 256)
    {
        ModelParams parameters = Parameters(cells);
        parameters.BatchSize = 64;
        return parameters;
    }

    [Theory]
    [InlineData("llama")]
    [InlineData("qwen2vl")] // cannot shift positions
    public async Task A_chat_outgrows_the_context_and_keeps_its_beginning(string architecture)
    {
        LLamaWeights weights = Random(architecture);
        using LLamaContext context = weights.CreateContext(Small(), "snapkv:budget=128,margin=32");
        var executor = new EvictingInteractiveExecutor(context);
        Assert.Equal(700, await Count(executor.InferAsync(Prompt, Greedy(700))));
        Assert.True(executor.Evictions > 3, $"{executor.Evictions} evictions");
        Assert.Equal(128, executor.LastEviction.CellsAfter);
        Assert.InRange(context.StoredLength(), 128, 256);
        for (int head = 0; head < 2; ++head)
            Assert.Equal(Enumerable.Range(0, 8), context.KeepPositions(layer: 1, kvHead: head)[..8]);
        Assert.InRange(context.LogicalLength(), 700, 800);
        // The next turn goes on. LLamaSharp counts its input too.
        Assert.InRange(await Count(executor.InferAsync(" more", Greedy(50))), 40, 50);
    }

    [Fact]
    public async Task It_says_what_LLamaSharp_says_until_the_context_is_full()
    {
        static async Task<string> Text(StatefulExecutorBase executor)
        {
            var text = new StringBuilder();
            await foreach (string piece in executor.InferAsync(Prompt, Greedy(200))) text.Append(piece);
            return text.ToString();
        }
        using LLamaContext plain = Random().CreateContext(Small());
        using LLamaContext evictable = Random().CreateContext(Small(), "snapkv:budget=128");
        string expected = await Text(new InteractiveExecutor(plain));
        Assert.Equal(expected, await Text(new EvictingInteractiveExecutor(evictable)));
        Assert.True(expected.Length > 100, expected);
    }

    [Fact]
    public async Task Unchanged_executors_go_on_in_a_context_that_is_told_to_be_larger()
    {
        var options = new KvEvictContextOptions { AutoEvict = true, LogicalContextSize = 4096 };
        using LLamaContext context = Random().CreateContext(Small(), "snapkv:budget=128,margin=32", options);
        Assert.Equal(4096u, context.ContextSize);
        Assert.Equal(700, await Count(new InteractiveExecutor(context).InferAsync(Prompt, Greedy(700))));
        Assert.InRange(context.StoredLength(), 128, 160);
        Assert.InRange(context.LogicalLength(), 700, 800);
    }

    [Fact]
    public async Task Contexts_that_LLamaSharp_makes_itself_evict_when_every_context_does()
    {
        List<string> lines = [];
        KvEvictLLama.Log = lines.Add;
        KvEvictLLama.EvictEveryContext("snapkv:budget=100,margin=20",
                                       new KvEvictContextOptions { AutoEvict = true, LogicalContextSize = 4096 });
        try
        {
            var executor = new StatelessExecutor(Random(), Small());
            Assert.Equal(400, await Count(executor.InferAsync(Prompt, Greedy(400))));
            Assert.Contains(lines, line => line.Contains("121 -> 100 cells", StringComparison.Ordinal));
            using LLamaContext context = Random().CreateContext(Small());
            Assert.True(context.IsEvictable);
        }
        finally
        {
            KvEvictLLama.EvictEveryContext(null);
            KvEvictLLama.Log = null;
        }
        using LLamaContext plain = Random().CreateContext(Small());
        Assert.False(plain.IsEvictable);
    }

    [Fact]
    public async Task A_chat_session_is_saved_and_goes_on_elsewhere()
    {
        string folder = Path.Combine(Path.GetTempPath(), Path.GetRandomFileName());
        var message = new ChatHistory.Message(AuthorRole.User, Prompt);
        int length;
        using (LLamaContext context = Random().CreateContext(Small(), "snapkv:budget=128,margin=32"))
        {
            var session = new ChatSession(new EvictingInteractiveExecutor(context));
            Assert.InRange(await Count(session.ChatAsync(message, Greedy(400))), 300, 400);
            session.SaveSession(folder);
            length = context.LogicalLength();
        }
        using (LLamaContext context = Random().CreateContext(Small(), "snapkv:budget=128,margin=32"))
        {
            var executor = new EvictingInteractiveExecutor(context);
            var session = new ChatSession(executor);
            session.LoadSession(folder);
            Assert.Equal(length, context.LogicalLength());
            Assert.InRange(await Count(session.ChatAsync(message, Greedy(400))), 300, 400);
            Assert.True(executor.Evictions > 1);
            Assert.InRange(context.LogicalLength(), length + 300, length + 500);
        }
        Directory.Delete(folder, true);
    }
}
