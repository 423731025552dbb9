using System.Diagnostics;
using LLama;
using LLama.Common;
using LLama.Native;
using Xunit;

// A process has one llama.cpp, and these tests count its threads and contexts.
[assembly: CollectionBehavior(DisableTestParallelization = true)]

namespace KvEvict.LLamaSharp.Tests;

/// <summary>Models of random weights, and contexts for them.</summary>
internal static class Models
{
    private static readonly Dictionary<string, LLamaWeights> s_weights = [];

    static Models()
    {
        NativeLogConfig.llama_log_set((_, _) => { });
        KvEvictLLama.Enable();
    }

    /// <summary>Random weights of an architecture, from the program that KVEVICT_TEST_WRITE_MODEL names.</summary>
    public static LLamaWeights Random(string architecture = "llama")
    {
        if (s_weights.TryGetValue(architecture, out LLamaWeights? weights)) return weights;
        string path = PathOf(architecture);
        using (Process writer = Process.Start(Environment.GetEnvironmentVariable("KVEVICT_TEST_WRITE_MODEL")!, [path, architecture]))
        {
            writer.WaitForExit();
            Assert.Equal(0, writer.ExitCode);
        }
        return s_weights[architecture] = LLamaWeights.LoadFromFile(Parameters(path, 512));
    }

    /// <summary>The file of a random model.</summary>
    public static string PathOf(string architecture) => Path.Combine(Path.GetTempPath(), $"random-{architecture}.gguf");

    /// <summary>One thread, since llama.cpp's others spin; K and V in f32, so that bounds can be tight.</summary>
    public static ModelParams Parameters(string path, uint cells) => new(path)
    {
        ContextSize = cells, Threads = 1, BatchThreads = 1, TypeK = GGMLType.GGML_TYPE_F32, TypeV = GGMLType.GGML_TYPE_F32,
        FlashAttention = false,
    };

    public static ModelParams Parameters(uint cells, bool flashAttention = false)
    {
        ModelParams parameters = Parameters("", cells);
        parameters.FlashAttention = flashAttention;
        return parameters;
    }

    /// <summary>Tokens drawn by a seed; 0 to 2 are special.</summary>
    public static LLamaToken[] Tokens(int count, int seed = 1)
    {
        var random = new Random(seed);
        return [.. Enumerable.Range(0, count).Select(_ => (LLamaToken)random.Next(3, 255))];
    }

    /// <summary>Decodes tokens, and returns the logits of the last one.</summary>
    public static float[] Decode(LLamaContext context, ReadOnlySpan<LLamaToken> tokens, int position, LLamaSeqId sequence = default)
    {
        var batch = new LLamaBatch();
        float[] logits = [];
        for (int begin = 0; begin < tokens.Length; begin += 256)
        {
            batch.Clear();
            int end = Math.Min(begin + 256, tokens.Length);
            for (int i = begin; i < end; ++i) batch.Add(tokens[i], position + i, sequence, i + 1 == tokens.Length);
            Assert.Equal(DecodeResult.Ok, context.Decode(batch));
            if (end == tokens.Length) logits = context.NativeHandle.GetLogitsIth(end - begin - 1).ToArray();
        }
        return logits;
    }

    public static float Distance(float[] a, float[] b) => a.Zip(b, (x, y) => Math.Abs(x - y)).Max();
}
