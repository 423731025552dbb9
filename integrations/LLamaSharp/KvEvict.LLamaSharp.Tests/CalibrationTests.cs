using System.Diagnostics;
using LLama;
using LLama.Native;
using Xunit;
using static KvEvict.LLamaSharp.Tests.Models;

namespace KvEvict.LLamaSharp.Tests;

/// <summary>Contexts that are evicted by statistics of the model's queries.</summary>
public sealed class CalibrationTests
{
    private const string TriAttention = "triattention:budget=200,scope=model";
    private const int Prompt = 700, Budget = 200;
    private static readonly Lazy<byte[]> s_ofRandom = new(() => Calibrate("llama"));

    /// <summary>What the program that KVEVICT_TEST_CALIBRATE names makes of a random model.</summary>
    private static byte[] Calibrate(string architecture)
    {
        Random(architecture);
        string text = Path.GetTempFileName(), file = Path.GetTempFileName();
        try
        {
            var random = new Random(3);
            File.WriteAllText(text, string.Concat(Enumerable.Range(0, 2000).Select(_ => (char)random.Next('!', '~'))));
            using Process program = Process.Start(CalibrateFactAttribute.Program!,
                                                  ["calibrate", "-m", PathOf(architecture), "-f", text, "-o", file]);
            program.WaitForExit();
            Assert.Equal(0, program.ExitCode);
            return File.ReadAllBytes(file);
        }
        finally
        {
            File.Delete(text);
            File.Delete(file);
        }
    }

    private static LLamaContext Evictable(string policy, ReadOnlyMemory<byte> calibration, bool autoEvict = false) =>
        Random().CreateContext(Parameters(1024), policy,
                               new KvEvictContextOptions { Calibration = calibration, AutoEvict = autoEvict });

    [CalibrateFact]
    public void Every_context_takes_it()
    {
        KvEvictLLama.EvictEveryContext(TriAttention, new KvEvictContextOptions { Calibration = s_ofRandom.Value, AutoEvict = true });
        try
        {
            using LLamaContext every = Random().CreateContext(Parameters(1024));
            using LLamaContext own = Evictable(TriAttention, s_ofRandom.Value);
            Decode(every, Tokens(Prompt), 0);
            Decode(own, Tokens(Prompt), 0);
            own.Evict();
            Assert.Equal(Budget, every.StoredLength());
            Assert.Equal(own.KeepPositions(), every.KeepPositions());
        }
        finally
        {
            KvEvictLLama.EvictEveryContext(null);
        }
    }

    [Fact]
    public void TriAttention_without_it_is_refused()
    {
        var refused = Assert.Throws<KvEvictLLamaException>(() => Evictable(TriAttention, default));
        Assert.Equal(KvEvictLLamaStatus.Unsupported, refused.Status);
        Assert.Contains("options.calibration", refused.Message);
    }

    [CalibrateFact]
    public void That_of_another_model_is_a_wrong_argument()
    {
        byte[] other = Calibrate("qwen3");
        using LLamaContext context = Evictable(TriAttention, other);
        Decode(context, Tokens(Prompt), 0);
        Assert.Contains("options.calibration: data: rope_layout", Assert.Throws<ArgumentException>(() => context.Evict()).Message);
        Assert.Equal(Prompt, context.StoredLength());

        List<string> lines = [];
        KvEvictLLama.Log = lines.Add;
        try
        {
            using LLamaContext automatic = Evictable(TriAttention, other, autoEvict: true);
            for (int i = 0; i < 3; ++i) Decode(automatic, Tokens(300), i * 300);
            Assert.Equal(900, automatic.StoredLength());
            Assert.Single(lines, line => line.Contains("nothing is evicted: options.calibration", StringComparison.Ordinal));
        }
        finally
        {
            KvEvictLLama.Log = null;
        }
    }
}

/// <summary>A test that needs the program of KVEVICT_TEST_CALIBRATE.</summary>
internal sealed class CalibrateFactAttribute : FactAttribute
{
    public CalibrateFactAttribute()
    {
        if (string.IsNullOrEmpty(Program)) Skip = "no kvevict-llama-cli";
    }

    public static string? Program => Environment.GetEnvironmentVariable("KVEVICT_TEST_CALIBRATE");
}
