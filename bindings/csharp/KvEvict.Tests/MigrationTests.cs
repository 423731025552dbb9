using System.Numerics;
using System.Runtime.InteropServices;
using Xunit;

namespace KvEvict.Tests;

/// <summary>The C# of docs/migration.md; tests/capi/migration_test.c has what it says of keep sets.</summary>
public unsafe class MigrationTests
{
    private static KvPolicy PolicyOf(int budget, int window, int recency)
    {
        recency = Math.Max(recency, 0);
        return KvPolicy.Parse(
            budget <= 0 ? "none"
            : recency >= budget ? $"streaming-llm:sink=0,recent={budget}"
            : $"snapkv-sharpinference:budget={(budget == 1 ? "1.5" : budget.ToString())}"
              + $",window={Math.Max(window, 1)},recent={recency}");
    }

    [Theory]
    [InlineData(0, 64, 64, 500)]
    [InlineData(-3, 64, 64, 500)]
    [InlineData(1, 64, 0, 1)]
    [InlineData(1, 64, 64, 1)]
    [InlineData(64, 64, 64, 64)]
    [InlineData(65, 0, -1, 65)]
    [InlineData(4096, 64, 64, 500)]
    public void Configurations_keep_as_many_tokens_as_the_engine(int budget, int window, int recency, int kept) =>
        Assert.Equal(kept, PolicyOf(budget, window, recency).LayerBudgets(500, 1)[0]);

    [Fact]
    public void An_unknown_size_is_a_large_one()
    {
        Assert.Equal(4096, KvPolicy.AutoBudget(131072, long.MaxValue));
        Assert.Equal(0, KvPolicy.AutoBudget(131072, 0));
    }

    [Fact]
    public void Pages_that_are_allocated_one_by_one_are_evicted_where_they_lie()
    {
        const int kvHeads = SmallModel.KvHeads, headDim = SmallModel.Dim, kvDim = kvHeads * headDim, pageCount = 4;
        using var model = new SmallModel(PolicyOf(20, 8, 4).ToString());
        var views = new KvView[SmallModel.Layers];
        nuint size = BitOperations.RoundUpToPowerOf2((nuint)(2 * 16 * kvDim * sizeof(float)));
        float*[][] pages = [new float*[pageCount], new float*[pageCount]];
        for (int i = pageCount - 1; i >= 0; --i)
        {
            foreach (float*[] ofLayer in pages)
            {
                ofLayer[i] = (float*)NativeMemory.AlignedAlloc(size, size);
                new Span<float>(ofLayer[i], 16 * kvDim).Fill(i);
                new Span<float>(ofLayer[i] + 16 * kvDim, 16 * kvDim).Fill(-i);
            }
        }
        for (int layer = 0; layer < SmallModel.Layers; ++layer) views[layer] = ViewOf(pages[layer]);
        model.Prefill(60);
        KvEvictReport report = model.Sequence.Evict(views, model.Workspace);
        Assert.Equal(4 - 2, report.BlocksFreed / SmallModel.Layers);
        for (int layer = 0; layer < SmallModel.Layers; ++layer)
        {
            // The last four tokens are of the last page.
            Assert.Equal(3, pages[layer][1][(20 - 1 - 16) * kvDim]);
            Assert.Equal(-3, pages[layer][1][(16 + 20 - 1 - 16) * kvDim]);
        }
        foreach (float*[] ofLayer in pages)
        {
            foreach (float* page in ofLayer) NativeMemory.AlignedFree(page);
        }

        KvView ViewOf(float*[] pages)
        {
            nuint lowest = nuint.MaxValue, highest = 0;
            for (int i = 0; i < pageCount; ++i)
            {
                lowest = nuint.Min(lowest, (nuint)pages[i]);
                highest = nuint.Max(highest, (nuint)pages[i]);
            }
            int[] ids = new int[pageCount];
            for (int i = 0; i < pageCount; ++i) ids[i] = (int)(((nuint)pages[i] - lowest) / size);
            KvPlane Half(long offset) => new()
            {
                Region = new KvRegion((nint)lowest, (long)(highest - lowest + size)), Offset = offset,
                DType = KvDType.F32, HeadDim = headDim, TokenStride = kvDim * sizeof(float),
                HeadStride = headDim * sizeof(float), BlockStride = (long)size,
            };
            var view = new KvView(kvHeads, Half(0), Half(16 * kvDim * sizeof(float))) { BlockSize = 16 };
            view.SetBlockTable(ids);
            return view;
        }
    }
}
