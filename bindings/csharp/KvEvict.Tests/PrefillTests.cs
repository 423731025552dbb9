using Xunit;

namespace KvEvict.Tests;

/// <summary>Prompts in chunks, over views and blocks.</summary>
public class PrefillTests
{
    private const string Text = "snapkv:budget=12,window=4,sink=1,recent=4";

    /// <summary>A model whose caches are views or blocks, and what goes wrong in a chunk, if anything.</summary>
    private sealed class Reader : IDisposable
    {
        private const int Row = SmallModel.KvHeads * SmallModel.Dim;
        private readonly KvPagedCache? _cache;

        public Reader(bool paged)
        {
            foreach (KvPinnedMemory<float> memory in Model.Keys.Concat(Model.Values)) memory.Span.Clear();
            if (!paged) return;
            _cache = new KvPagedCache(Model.Plan, new KvPagedCacheOptions(10) { BlockSize = 4 });
            Cached = new KvPagedSequence(_cache);
        }

        public SmallModel Model { get; } = new(Text);
        public KvPagedSequence? Cached { get; }
        public List<(int First, int Count)> Chunks { get; } = [];
        public Action<int>? At { get; set; }

        public void Forward(int firstToken, int tokenCount)
        {
            Chunks.Add((firstToken, tokenCount));
            At?.Invoke(firstToken);
            for (int l = 0; l < SmallModel.Layers; ++l)
            {
                if (Cached is null) Model.Store(l, firstToken, tokenCount);
                else Write(l, firstToken, tokenCount);
                KvPlane queries = Model.QueryPlane;
                queries = queries with { Offset = firstToken * queries.TokenStride };
                Model.Sequence.Observe(l, queries, tokenCount, firstToken);
            }
        }

        public KvPrefillReport Read(KvPrefill prompt) =>
            Cached is null ? Model.Sequence.Prefill(prompt, Model.Views, Model.Workspace)
                           : Cached.Prefill(prompt, Model.Sequence, Model.Workspace);

        public KvPrefill Prompt(int tokenCount, bool each = false) =>
            new(tokenCount, 8, Forward) { EvictEachChunk = each };

        private void Write(int layer, int firstToken, int tokenCount)
        {
            using var keys = new KvPinnedMemory<float>(tokenCount * Row);
            using var values = new KvPinnedMemory<float>(tokenCount * Row);
            for (int i = 0; i < keys.Length; ++i)
            {
                keys.Span[i] = SmallModel.Content(layer, firstToken + i / Row, i / SmallModel.Dim % SmallModel.KvHeads);
                values.Span[i] = -keys.Span[i];
            }
            int held = Model.Sequence.StoredLength(layer);
            Assert.Equal(held + tokenCount, Cached!.Length(layer));
            Cached.Write([new KvPagedRows(
                layer, held, tokenCount,
                KvPlane.TokenMajor(keys, KvDType.F32, SmallModel.KvHeads, SmallModel.Dim),
                KvPlane.TokenMajor(values, KvDType.F32, SmallModel.KvHeads, SmallModel.Dim))]);
        }

        public void Dispose()
        {
            Cached?.Dispose();
            _cache?.Dispose();
            Model.Dispose();
        }
    }

    [Theory]
    [InlineData(false)]
    [InlineData(true)]
    public void What_the_model_throws_is_thrown(bool paged)
    {
        using var reader = new Reader(paged);
        var wrong = new TimeoutException("the model is gone");
        reader.At = first =>
        {
            GC.Collect(); // what native code holds stays
            if (first == 8) throw wrong;
        };
        Assert.Same(wrong, Assert.Throws<TimeoutException>(() => reader.Read(reader.Prompt(30, each: true))));
        Assert.Equal(8, reader.Model.Sequence.LogicalLength);
        reader.At = null; // and the rest may be read
        Assert.Equal(3, reader.Read(reader.Prompt(22, each: true)).Chunks);
    }

    [Fact]
    public void The_librarys_errors_in_the_model_are_thrown()
    {
        using var reader = new Reader(paged: false);
        reader.At = _ => reader.Model.Sequence.StoredLength(7);
        Assert.Contains("layer 7", Assert.Throws<ArgumentException>(() => reader.Read(reader.Prompt(30))).Message);
    }

    [Fact]
    public void A_sequence_that_the_model_disposes_lasts_until_the_end()
    {
        using var reader = new Reader(paged: true);
        reader.At = _ => reader.Model.Sequence.Dispose();
        Assert.Throws<ObjectDisposedException>(() => reader.Read(reader.Prompt(8)));
    }

    [Fact]
    public void Views_may_be_part_of_an_array()
    {
        using var reader = new Reader(paged: false);
        KvView[] longer = [.. reader.Model.Views, null!];
        ReadOnlySpan<KvView> views = longer.AsSpan(0, SmallModel.Layers);
        reader.At = _ => GC.Collect(); // the array moves no more than what native code holds
        reader.Model.Sequence.Prefill(reader.Prompt(30), views, reader.Model.Workspace);
        Assert.Equal(30, reader.Model.Sequence.LogicalLength);
    }

    [Fact]
    public void Views_are_read_again()
    {
        using var reader = new Reader(paged: false);
        using var small = new KvPinnedMemory<float>(12 * SmallModel.KvHeads * SmallModel.Dim);
        KvPlane rows = KvPlane.TokenMajor(small, KvDType.F32, SmallModel.KvHeads, SmallModel.Dim);
        reader.At = first =>
        {
            if (first == 8) reader.Model.Views[1] = new KvView(SmallModel.KvHeads, rows, rows);
        };
        Assert.ThrowsAny<ArgumentException>(() => reader.Read(reader.Prompt(30, each: true)));
        Assert.Equal(8, reader.Model.Sequence.LogicalLength);
    }

    [Fact]
    public void Errors_say_what_is_wrong()
    {
        using var reader = new Reader(paged: false);
        Assert.Throws<ArgumentNullException>(() => new KvPrefill(1, 1, null!));
        Assert.Throws<ArgumentOutOfRangeException>(() => reader.Read(new KvPrefill(-1, 1, reader.Forward)));
        void Says(string part, Func<KvPrefillReport> call) =>
            Assert.Contains(part, Assert.Throws<ArgumentException>(() => call()).Message);
        Says("chunk 0 < 1", () => reader.Read(new KvPrefill(20, 0, reader.Forward)));
        Says("65", () => reader.Read(reader.Prompt(65)));
        Says("Destinations are set", () => reader.Read(new KvPrefill(20, 8, reader.Forward)
        {
            Evict = new KvEvictOptions { Destinations = reader.Model.Views },
        }));
        Says("both NULL", () => reader.Model.Sequence.Prefill(reader.Prompt(1), [], reader.Model.Workspace));
        Assert.Empty(reader.Chunks);
    }
}
