using Xunit;

namespace KvEvict.Tests;

/// <summary>Calls for many sequences, and forks under another plan.</summary>
public class BatchTests
{
    private static readonly int[] Lengths = [30, 12, 47];

    [Fact]
    public void Batches_equal_single_calls()
    {
        const string policy = "snapkv:budget=16,window=4,sink=4,scope=head";
        using var context = new KvContext();
        using var models = new Models(policy, context);
        using var singles = new Models(policy, context);
        foreach ((SmallModel single, int length) in singles.All.Zip(Lengths))
        {
            single.Prefill(length);
            single.Sequence.Evict(single.Views, single.Workspace, new KvEvictOptions { ProtectedPositions = new[] { 7 } });
        }
        KvBatch.Append([.. models.All.Zip(Lengths, (m, n) => new KvSequenceTokens(m.Sequence, n + 3))]);
        KvBatch.TrimTo([.. models.All.Zip(Lengths, (m, n) => new KvSequenceLength(m.Sequence, n))]);
        Assert.Equal(Lengths, models.All.Select(m => m.Sequence.LogicalLength));
        KvBatch.Observe([.. models.All.Zip(Lengths, (m, n) => new KvSequenceObservations(
            m.Sequence, Enumerable.Range(0, SmallModel.Layers).Select(l => new KvObservation(l, m.QueriesFrom(0)))
                            .ToArray(), n, 0))]);
        KvWorkspaceSize size = KvBatch.WorkspaceSize([.. models.All.Select(m => m.Sequence)]);
        using var workspace = new KvWorkspace(size.Best, size.Alignment);
        KvBatch.Evict([.. models.All.Select(m => new KvSequenceEviction(
                              m.Sequence, m.Views, new KvEvictOptions { ProtectedPositions = new[] { 7 } }))], workspace);
        foreach ((SmallModel single, SmallModel model) in singles.All.Zip(models.All))
        {
            Assert.Equal(single.Sequence.Report, model.Sequence.Report);
            for (int l = 0; l < SmallModel.Layers; ++l)
            {
                for (int h = 0; h < SmallModel.KvHeads; ++h)
                    Assert.Equal(single.Sequence.KeepPositions(l, h), model.Sequence.KeepPositions(l, h));
                Assert.Equal(single.Keys[l].Span, model.Keys[l].Span);
            }
        }
    }

    [Fact]
    public void Batches_are_checked_first()
    {
        using var context = new KvContext();
        using var models = new Models("knorm:budget=8", context);
        SmallModel a = models.All[0], b = models.All[1];
        KvBatch.Append([new(a.Sequence, 30), new(b.Sequence, 12)]);
        KvSequenceEviction good = new(a.Sequence, a.Views);
        KvSequenceEviction gone = new(b.Sequence, b.Views, new() { ProtectedPositions = new[] { 99 } });
        Assert.StartsWith("items[1]: protected_positions[0] 99", Refused(() => KvBatch.Evict([good, gone], a.Workspace)));
        KvSequenceEviction same = new(b.Sequence, a.Views);
        Assert.Contains("items[0] and [1]: views[0].k", Refused(() => KvBatch.Evict([good, same], a.Workspace)));
        Assert.Contains("items[1]: sequence: items[0] has it too", Refused(
            () => KvBatch.Append([new(a.Sequence, 1), new(a.Sequence, 1)])));
        Assert.Contains("items[1]: n_tokens", Refused(
            () => KvBatch.Append([new(b.Sequence, 1), new(a.Sequence, SmallModel.MaxTokens)])));
        Assert.Throws<ArgumentNullException>(() => KvBatch.Append([new(b.Sequence, 1), new(null!, 1)]));
        Assert.Equal(30, a.Sequence.StoredLength(0));
        Assert.Equal(12, b.Sequence.LogicalLength);
        KvBatch.TrimTo([]);
        KvBatch.Observe([]);
        KvBatch.Evict([], default);
        Assert.Equal(0, KvBatch.WorkspaceSize([]).Best);
    }

    [Fact]
    public void Forks_go_on_under_another_plan()
    {
        using var model = new SmallModel("snapkv:budget=16,window=4,sink=4,scope=layer");
        using var decode = new KvPlan(model.Context, SmallModel.Geometry, KvPolicy.Parse("streaming-llm:budget=8,sink=2"));
        model.Prefill(40);
        model.Evict();
        model.Sequence.EndPrompt();
        int[] before = model.Sequence.KeepPositions(1, 1);
        using KvSequence fork = model.Sequence.Fork(decode);
        Assert.Equal(before, fork.KeepPositions(1, 1));
        fork.Append(1);
        using KvWorkspace workspace = decode.CreateWorkspace(KvOperation.Evict);
        fork.Evict(model.Views, workspace);
        Assert.Equal([.. before[..2], .. before[11..], 40], fork.KeepPositions(1, 1));
        var one = new KvGeometry(1, SmallModel.Layer, SmallModel.MaxTokens);
        using var other = new KvPlan(model.Context, one, KvPolicy.Parse("none"));
        Assert.Contains("plan: n_layers 1", Refused(() => fork.Fork(other)));
    }

    [Fact]
    public void Layers_have_budgets_of_their_own()
    {
        using var context = new KvContext();
        KvPolicy policy = KvPolicy.Parse("knorm:budget=5");
        using var plan = new KvPlan(context, SmallModel.Geometry, policy, new KvPlanOptions { LayerBudgets = new[] { 0.5, 9 } });
        Assert.Equal([15, 9], plan.LayerBudgets(30));
        Assert.Contains("layer_budgets_len 1",
                        Refused(() => new KvPlan(context, SmallModel.Geometry, policy, new KvPlanOptions { LayerBudgets = new[] { 1.0 } })));
    }

    private static string Refused(Action call) => Assert.Throws<ArgumentException>(call).Message;

    private sealed class Models(string policy, KvContext context) : IDisposable
    {
        public SmallModel[] All { get; } = [.. Lengths.Select(_ => new SmallModel(policy, context))];

        public void Dispose()
        {
            foreach (SmallModel model in All) model.Dispose();
        }
    }
}
