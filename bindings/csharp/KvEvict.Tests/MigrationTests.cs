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
        int[] slots = [5, 0, 3, 2];
        float*[][] pages = [new float*[pageCount], new float*[pageCount]];
        KvPinnedMemory<nint>[] addresses = [new(6), new(6)];
        for (int i = pageCount - 1; i >= 0; --i)
        {
            for (int layer = 0; layer < SmallModel.Layers; ++layer)
            {
                float* page = pages[layer][i] = (float*)NativeMemory.Alloc(2 * 16 * kvDim * sizeof(float));
                addresses[layer].Span[slots[i]] = (nint)page;
                new Span<float>(page, 16 * kvDim).Fill(i);
                new Span<float>(page + 16 * kvDim, 16 * kvDim).Fill(-i);
            }
        }
        for (int layer = 0; layer < SmallModel.Layers; ++layer) views[layer] = ViewOf(addresses[layer]);
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
            foreach (float* page in ofLayer) NativeMemory.Free(page);
        }

        KvView ViewOf(KvPinnedMemory<nint> addresses)
        {
            KvPlane keys = KvPlane.InBlocks(addresses, KvDType.F32, kvHeads, headDim);
            KvPlane values = keys with { Offset = 16 * kvDim * sizeof(float) };
            var view = new KvView(kvHeads, keys, values) { BlockSize = 16 };
            view.SetBlockTable(slots);
            return view;
        }
    }
}
