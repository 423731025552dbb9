using System.Text.RegularExpressions;
using Xunit;
using static KvEvict.Tests.Texts;

namespace KvEvict.Tests;

/// <summary>Makes the calls of a transcript, each the C function of that name, and compares what comes out.</summary>
public class TranscriptTests
{
    [Fact]
    public void Every_call_gives_what_it_gave_in_C()
    {
        string? file = Environment.GetEnvironmentVariable("KVEVICT_TEST_TRANSCRIPT");
        if (file is null) return; // only ctest has it
        string[] lines = File.ReadAllLines(file);
        List<string> wrong = [];
        Replayer? replay = null;
        int made = 0;
        for (int i = 0; i < lines.Length; ++i)
        {
            var line = new Line(lines[i]);
            if (line.Name == "script")
            {
                replay?.Finish(wrong);
                replay = new Replayer();
            }
            else if (replay!.Has(line.Name))
            {
                string expected = Replayer.Expected(lines[++i]), actual = replay.Make(line);
                if (actual != expected) wrong.Add($"{line.Content}\nexpected {expected}\ngot      {actual}");
                if (line.Unused() is { } unused) wrong.Add(unused);
                ++made;
            }
            else
            {
                replay.Define(line);
            }
        }
        replay?.Finish(wrong);
        Assert.True(wrong.Count == 0, string.Join('\n', wrong));
        Assert.InRange(made, 300, int.MaxValue);
    }
}

internal sealed class Replayer : Replay
{
    private readonly Dictionary<string, Func<Line, string>> _calls = [];

    public Replayer()
    {
        AddTables();
        AddPlans();
        AddDoors();
        AddSequences();
        AddBatches();
        AddCalibrations();
        AddPaged();
    }

    public bool Has(string call) => _calls.ContainsKey(call);

    public void Define(Line line)
    {
        if (line.Name == "buffer") Buffers.Add(line.Text("name"), new Data(line, name => Buffers[name]));
        else Structs.Add(line.Text("name"), line);
    }

    /// <summary>An error has the binding's own names, and the type that its status has in C#.</summary>
    public static string Expected(string text)
    {
        if (text[0] == '=') return text;
        var failed = new Line(text);
        string message = Regex.Replace(failed.Text("message"), "kvevict_[a-z0-9_]+", name => NativeNames.Of(name.Value));
        var status = (KvStatus)failed.Int("status");
        return status == KvStatus.InvalidArgument ? $"! {typeof(ArgumentException)} {message}"
            : $"! {typeof(KvEvictException)} {status} {message}";
    }

    public string Make(Line line)
    {
        try
        {
            string text = "=" + _calls[line.Name](line);
            return text + Changed();
        }
        catch (KvEvictException e)
        {
            return $"! {e.GetType()} {e.Status} {e.Message}{Changed()}";
        }
        catch (ArgumentException e)
        {
            return $"! {e.GetType()} {e.Message}{Changed()}";
        }
    }

    /// <summary>Every argument has been given to the library.</summary>
    public void Finish(List<string> wrong)
    {
        wrong.AddRange(Structs.Values.Select(line => line.Unused()).OfType<string>());
        foreach (IDisposable handle in Handles.Values.OfType<IDisposable>()) handle.Dispose();
    }

    // Buffers that have changed since the last call, as a transcript has them.
    private string Changed() => string.Concat(
        Buffers.Where(pair => pair.Value.Changed()).Select(pair => $" @{pair.Key}={pair.Value.Hash()}"));

    private void Add(string name, Func<Line, string> call) => _calls.Add(name, call);

    // A call from which nothing comes out.
    private void Act(string name, Action<Line> call) => _calls.Add(name, line =>
    {
        call(line);
        return "";
    });

    // A call that makes what the line names.
    private void Create(string name, Func<Line, object> create) =>
        Act(name, line => Handles[line.Text("name")] = create(line));

    private void AddTables()
    {
        Add("version", _ => Result("version", KvEvictLibrary.Version));
        Add("abi_version", _ => Result("version", KvEvictLibrary.AbiVersion));
        Act("device_check", l => KvEvictLibrary.CheckDevice((KvDevice)l.Int("device")));
        Add("simd_target_at", l => Result("target", KvEvictLibrary.SimdTargets[l.Int("index")]));
        Add("reason_text", l => Result("text", KvEvictLibrary.ReasonText((KvReason)l.Int("reason"))));
        Add("auto_budget", l => Result("budget", KvPolicy.AutoBudget(l.Int("max_tokens"), l.Long("full_cache_bytes"))));
        Add("dtype_at", l =>
        {
            KvDTypeInfo d = KvEvictLibrary.DTypes[l.Int("index")];
            int scale = (d.TakesScale ? 1 : 0) + (d.NeedsScale ? 1 : 0);
            return Result("name", d.Name) + " numbers=" + Joined(d.DType, d.ElementBytes, d.CanMove, d.CanScore,
                d.CanRotate, d.BlockElements, d.BlockBytes, scale, d.TakesMinimum);
        });
        Add("policy_at", l =>
        {
            KvPolicyInfo p = KvPolicy.All[l.Int("index")];
            return Result("name", p.Name) + Result("signal", p.Signal) + Result("summary", p.Summary)
                + Result("trigger", p.Trigger) + Result("paper", p.Paper)
                + Result("defaults", p.Defaults);
        });
        Add("preset_at", l =>
        {
            KvPresetInfo p = KvPolicy.Presets[l.Int("index")];
            return Result("name", p.Name) + Result("policy_text", p.PolicyText) + Result("reproduces", p.Reproduces);
        });
        Add("parameter_at", l =>
        {
            KvParameterInfo p = KvPolicy.ParametersOf(l.Has("policy") ? l.Text("policy") : null)[l.Int("index")];
            return Result("key", p.Key) + Result("type", p.Type) + Result("words", p.Words)
                + Result("least", BitConverter.DoubleToUInt64Bits(p.Least))
                + Result("most", BitConverter.DoubleToUInt64Bits(p.Most))
                + " flags=" + Joined(p.ExcludesLeast, p.TakesZero) + Result("default", p.Default);
        });
        Add("policy_create", l => Result("text", Handles[l.Text("name")] = KvPolicy.Parse(l.Text("text"))));
        Add("policy_set", l => Result("text",
            Handles[l.Text("policy")] = Handle<KvPolicy>(l).With($"{l.Text("key")}={l.Text("value")}")));
        Act("policy_validate", l => Handle<KvPolicy>(l).Validate());
        Add("policy_resolve", l =>
        {
            KvResolvedPolicy p = Handle<KvPolicy>(l).Resolve(l.Int("n_context"));
            return " resolved=" + Joined(p.Budget, p.Sink, p.Recent, p.Selected, p.QueryRows, p.ScoresAreMass);
        });
        Add("policy_layer_budgets", l =>
            " budgets=" + Listed(Handle<KvPolicy>(l).LayerBudgets(l.Int("n_context"), l.Int("n_layers"))));
        Add("policy_need", l => Result("need", Handle<KvPolicy>(l).NeedOf((KvInput)l.Int("input"))));
    }

    private void AddPlans()
    {
        Create("context_create", _ => new KvContext());
        Act("context_destroy", l => Handle<KvContext>(l).Dispose());
        Act("context_prepare", l => Handle<KvContext>(l).Prepare(l.Has("plan") ? Handle<KvPlan>(l) : null));
        Create("plan_create", Plan);
        Act("plan_destroy", l => Handle<KvPlan>(l).Dispose());
        Add("plan_layer", l =>
        {
            KvLayerInfo i = Handle<KvPlan>(l).Layer(l.Int("layer"));
            return " info=" + Joined(i.Cache, i.QueryHeads, i.KvHeads, i.ListCount, i.FirstList);
        });
        Add("plan_capabilities", l =>
        {
            KvCapabilities c = Handle<KvPlan>(l).Capabilities(l.Int("layer"));
            return " can=" + Joined(c.CanMove, c.CanScore, c.CanRotate, c.MoveReason, c.ScoreReason, c.RotateReason,
                c.NeedsScore, c.TableBlock, c.NeedsHeadTables, c.NeedsLayerTables);
        });
        Add("plan_workspace", l => Size(
            Handle<KvPlan>(l).WorkspaceSize((KvOperation)l.Int("operation"), l.Int("n_tokens"))));
        Add("plan_selection", l =>
        {
            KvSelectOptions o = Handle<KvPlan>(l).Selection(l.Int("layer"), l.Int("n_tokens"), out KvKeepLists k,
                                                            l.Int("n_seen"));
            return " selection=" + Joined(o.TokenCount, o.RowCount, o.Reduce, o.SinkCount, o.RecentCount, o.Tie,
                o.SelectBlock, k.ListCount, k.Count);
        });
        Add("plan_layer_budgets", l =>
        {
            int[] budgets = Handle<KvPlan>(l).LayerBudgets(l.Int("n_tokens"));
            Assert.Equal(l.Int("n_layers"), budgets.Length);
            return " budgets=" + Listed(budgets);
        });
    }

    private static string Size(KvWorkspaceSize size) => " workspace=" + Joined(size.Alignment, size.Least, size.Best);

    private void AddDoors()
    {
        Act("view_validate", l => View(l.Text("view")).Validate(l.Int("n_tokens")));
        Act("score", l => Handle<KvPlan>(l).Score(l.Each("jobs", ScoreJob), Scratch(l)));
        Act("select", l => Handle<KvContext>(l).Select(
            SelectOptions(l.Text("options")), KeepLists(l.Text("keep")), Scratch(l)));
        Add("select_workspace", l => Size(
            Handle<KvContext>(l).SelectWorkspaceSize(l.Int("n_tokens"), l.Int("n_lists"))));
        Act("compact", l => Handle<KvContext>(l).Compact(l.Each("moves", Move), Scratch(l)));
        Add("compact_workspace", l => Size(Handle<KvContext>(l).CompactWorkspaceSize(l.Each("moves", Move))));
        Act("reorder", l => Handle<KvContext>(l).Reorder(l.Each("moves", Move), Scratch(l)));
        Add("reorder_workspace", l => Size(Handle<KvContext>(l).ReorderWorkspaceSize(l.Each("moves", Move))));
        Act("rotate", l => Handle<KvPlan>(l).Rotate(l.Each("rotations", Rotation)));
        Act("attend", l => Handle<KvContext>(l).Attend(l.Each("jobs", Attention), Scratch(l)));
        Add("attend_workspace", l => Size(Handle<KvContext>(l).AttendWorkspaceSize(l.Each("jobs", Attention))));
        Add("budget_for_mass", l => " budgets=" + Listed(Handle<KvContext>(l).BudgetForMass(
            l.Each("layers", LayerScores), MassOptions(l.Text("options")))));
    }

    private void AddSequences()
    {
        Create("sequence_create", l => new KvSequence(Handle<KvPlan>(l)));
        Act("sequence_destroy", l => Handle<KvSequence>(l).Dispose());
        Act("sequence_reset", l => Handle<KvSequence>(l).Reset());
        Act("sequence_begin_observing", l =>
        {
            if (l.Has("memory")) Handle<KvSequence>(l).BeginObserving(Memory(l.Text("memory")));
            else Handle<KvSequence>(l).BeginObserving();
        });
        Act("sequence_end_observing", l => Handle<KvSequence>(l).EndObserving());
        Act("sequence_observe", l => Handle<KvSequence>(l).Observe(
            l.Each("observations", Observation), l.Int("n_rows"), FirstPosition(l)));
        Act("sequence_append", l => Handle<KvSequence>(l).Append(l.Int("n_tokens")));
        Act("sequence_end_prompt", l => Handle<KvSequence>(l).EndPrompt());
        Act("sequence_trim_to", l => Handle<KvSequence>(l).TrimTo(l.Int("new_length")));
        Act("sequence_replayed", l => Handle<KvSequence>(l).Replayed(l.Int("n_tokens")));
        Act("sequence_start", l =>
        {
            if (l.Has("layers")) Handle<KvSequence>(l).Start(l.Each("layers", PositionLists), l.Int("n_tokens"));
            else Handle<KvSequence>(l).Start(l.Int("n_tokens"));
        });
        Create("sequence_fork", l =>
        {
            if (!l.Has("options")) return Handle<KvSequence>(l).Fork();
            Line o = Struct("fork_options", l.Text("options"));
            KvRegion memory = Memory(o.Text("memory"));
            return o.Has("plan") ? Handle<KvSequence>(l).Fork(Handle<KvPlan>(o), memory)
                : Handle<KvSequence>(l).Fork(memory);
        });
        Act("sequence_save", l => Bytes(l.Text("name"), Handle<KvSequence>(l).Save()));
        Act("sequence_load", l => Handle<KvSequence>(l).Load(Buffers[l.Text("data")].Span<byte>()));
        Add("sequence_evict", l => " report=" + Report(Handle<KvSequence>(l).Evict(
            l.Each("views", View), Scratch(l), Options(l.Text("options")))));
        Add("sequence_report", l =>
        {
            KvListReport[] lists = Handle<KvSequence>(l).ListReports();
            Assert.Equal(l.Int("n_lists"), lists.Length);
            return " report=" + Report(Handle<KvSequence>(l).Report) + " lists=" + Listed(lists.Select(list => Joined(
                list.Layer, list.TokensBefore, list.TokensAfter, list.MassKept, list.LargestMassEvicted)));
        });
        Add("sequence_stored_length",
            l => Result("length", Handle<KvSequence>(l).StoredLength(l.Int("layer"), l.Int("kv_head"))));
        Add("sequence_logical_length", l => Result("length", Handle<KvSequence>(l).LogicalLength));
        Add("sequence_exact_prefix", l => Result("length", Handle<KvSequence>(l).ExactPrefix()));
        Add("sequence_keep_positions", l =>
            " positions=" + Listed(Handle<KvSequence>(l).KeepPositions(l.Int("layer"), l.Int("kv_head"))));
        Add("sequence_position_of_slot", l => Result("position",
            Handle<KvSequence>(l).PositionOfSlot(l.Int("layer"), l.Int("kv_head"), l.Int("slot"))));
        Add("sequence_slot_of_position", l => Result("slot",
            Handle<KvSequence>(l).SlotOfPosition(l.Int("layer"), l.Int("kv_head"), l.Int("position"))));
        Add("sequence_kept_slots", l => " slots=" + Listed(Handle<KvSequence>(l).KeptSlots(l.Each("views", View))));
        Add("sequence_undo_bytes", l => Result("bytes", Handle<KvSequence>(l).UndoBytes(l.Each("views", View))));
        Act("sequence_undo", l => Handle<KvSequence>(l).Undo(l.Each("views", View), Memory(l.Text("undo"))));
        Act("sequence_edit", l => Handle<KvSequence>(l).Edit(l.Each("views", View), Edit(l.Text("edit"))));
        Add("sequence_memory_of", l =>
        {
            KvSequenceMemory m = Handle<KvSequence>(l).MemoryOf(l.Int("layer"));
            uint[] counts = Words(m.ListedCounts, m.ListCount);
            string text = " counts=" + Joined(m.ListCount, m.ListedCount, m.SumHeads, m.SumStride)
                + " lengths=" + Listed(Words(m.Lengths, 2 * m.ListCount));
            for (int i = 0; i < m.ListCount; ++i)
            {
                int count = counts.Length == 0 ? m.ListedCount : (int)counts[i];
                text += " positions=" + Listed(Words(m.Positions + 4 * i * m.ListedCount, count));
            }
            return text + " listed_counts=" + Listed(counts)
                + " sums=" + Listed(Words(m.Sums, (int)(m.SumHeads * m.SumStride)));
        });
    }

    private static string Report(KvEvictReport r) => Joined(
        r.Evicted, r.BytesBefore, r.BytesAfter, r.TokensBefore, r.TokensAfter, r.BlocksFreed, r.Reason,
        r.WeakFits);

    private void AddBatches()
    {
        Act("sequences_append", l => KvBatch.Append(l.Each("items", name =>
        {
            Line item = Struct("sequence_tokens", name);
            return new KvSequenceTokens(Handle<KvSequence>(item), item.Int("n_tokens"));
        })));
        Act("sequences_trim_to", l => KvBatch.TrimTo(l.Each("items", name =>
        {
            Line item = Struct("sequence_length", name);
            return new KvSequenceLength(Handle<KvSequence>(item), item.Int("new_length"));
        })));
        Act("sequences_observe", l => KvBatch.Observe(l.Each("items", name =>
        {
            Line item = Struct("sequence_observations", name);
            return new KvSequenceObservations(Handle<KvSequence>(item), item.Each("observations", Observation),
                                              item.Int("n_rows"), FirstPosition(item));
        })));
        Add("sequences_workspace", l => Size(KvBatch.WorkspaceSize(
            l.Each("items", name => Handle<KvSequence>(Struct("sequence_eviction", name))))));
        Add("sequences_evict", l =>
        {
            KvSequenceEviction[] items = l.Each("items", name =>
            {
                Line item = Struct("sequence_eviction", name);
                return new KvSequenceEviction(Handle<KvSequence>(item), item.Each("views", View),
                                              Options(item.Text("options")));
            });
            KvBatch.Evict(items, Scratch(l));
            return " reports=" + Listed(items.Select(item => Report(item.Sequence.Report)));
        });
    }

    private void AddCalibrations()
    {
        Create("calibration_create", l => new KvCalibration(Handle<KvPlan>(l), l.Int("has_covariances") != 0));
        Act("calibration_destroy", l => Handle<KvCalibration>(l).Dispose());
        Act("calibration_observe", l => Handle<KvCalibration>(l).Observe(
            l.Int("layer"), Plane(l.Text("queries")), l.Int("n_rows"), l.Int("first_position")));
        Add("calibration_rows", l => Result("rows", Handle<KvCalibration>(l).RowCount(l.Int("layer"))));
        Act("calibration_query_centers", l =>
        {
            (string name, int length) = (l.Text("name"), l.Int("length"));
            Floats(name, Handle<KvCalibration>(l).QueryCenters(l.Int("layer")), length);
        });
        Act("calibration_query_mean", l =>
        {
            (string name, int length, int products) = (l.Text("name"), l.Int("length"), l.Int("covariance_length"));
            (float[] mean, float[] covariance) = Handle<KvCalibration>(l).QueryMean(
                l.Int("layer"), l.Int("first_position"), l.Int("n_positions"), products > 0);
            Floats(name, mean, length);
            Floats(name + "_covariance", covariance, products);
        });
        Act("calibration_save", l => Bytes(l.Text("name"), Handle<KvCalibration>(l).Save()));
        Act("calibration_load", l => Handle<KvCalibration>(l).Load(Buffers[l.Text("data")].Span<byte>()));
    }

    // Names what a call returned.
    private void Bytes(string name, byte[] data)
    {
        var saved = new Data("u8", data.Length);
        data.CopyTo(saved.Span<byte>());
        Buffers.Add(name, saved);
    }

    private void Floats(string name, float[] values, int length)
    {
        Assert.Equal(length, values.Length);
        var made = new Data("f32", length);
        values.CopyTo(made.Span<float>());
        Buffers.Add(name, made);
    }

    private void AddPaged()
    {
        Add("paged_cache_bytes", l => Result("bytes",
            KvPagedCache.BytesFor(Handle<KvPlan>(l), PagedCacheOptions(l.Text("options")))));
        Create("paged_cache_create",
            l => new KvPagedCache(Handle<KvPlan>(l), PagedCacheOptions(l.Text("options"))));
        Act("paged_cache_destroy", l => Handle<KvPagedCache>(l).Dispose());
        Add("paged_cache_get_usage", l =>
        {
            KvPagedCacheUsage u = Handle<KvPagedCache>(l).Usage;
            return " usage=" + Joined(u.Sequences, u.Blocks, u.Free, u.Shared, u.Slots, u.Bytes, u.BytesInUse,
                u.F32Bytes);
        });
        Create("paged_sequence_create", l => new KvPagedSequence(Handle<KvPagedCache>(l)));
        Create("paged_sequence_fork", l => Handle<KvPagedSequence>(l).Fork());
        Act("paged_sequence_destroy", l => Handle<KvPagedSequence>(l).Dispose());
        Act("paged_sequence_append", l => Handle<KvPagedSequence>(l).Append(l.Int("n_tokens")));
        Act("paged_sequence_truncate", l => Handle<KvPagedSequence>(l).Truncate(l.Int("new_length")));
        Act("paged_sequence_fit", l => Handle<KvPagedSequence>(l).Fit(Handle<KvSequence>(l, "stored")));
        Add("paged_sequence_length", l => Result("slots", Handle<KvPagedSequence>(l).Length(l.Int("layer"))));
        Create("paged_sequence_view", l => Handle<KvPagedSequence>(l).View(l.Int("layer")));
        Act("paged_sequence_own", l => Handle<KvPagedSequence>(l).Own(l.Int("first_slot")));
        Act("paged_sequence_write", l => Handle<KvPagedSequence>(l).Write(l.Each("rows", PagedRows)));
        Act("paged_sequence_read", l => Handle<KvPagedSequence>(l).Read(l.Each("rows", PagedRows)));
        Act("paged_edit", l => Handle<KvPagedSequence>(l).Edit(Handle<KvSequence>(l), Edit(l.Text("edit"))));
        Add("paged_evict", l =>
        {
            KvPagedEviction[] items = l.Each("items", name =>
            {
                Line item = Struct("paged_eviction", name);
                return new KvPagedEviction(Handle<KvPagedSequence>(item), Handle<KvSequence>(item),
                                           Options(item.Text("options")));
            });
            KvBatch.EvictPaged(items, Scratch(l));
            return " reports=" + Listed(items.Select(item => Report(item.Sequence.Report)));
        });
        Add("sequence_prefill", l =>
        {
            Line o = Struct("prefill_options", l.Text("options"));
            List<string> chunks = [];
            var prompt = new KvPrefill(o.Int("n_tokens"), o.Int("chunk"),
                                       (first, count) => chunks.Add(Joined(first, count)))
            {
                EvictEachChunk = o.Flag("evict_each_chunk"), Evict = Options(o.Text("evict")),
            };
            KvPrefillReport r = o.Has("cached")
                ? Handle<KvPagedSequence>(o).Prefill(prompt, Handle<KvSequence>(l), Scratch(o, "workspace_bytes"))
                : Handle<KvSequence>(l).Prefill(prompt, o.Each("views", View), Scratch(o, "workspace_bytes"));
            return " chunks=" + Listed(chunks)
                + " report=" + Joined(r.Chunks, r.Evictions, r.PeakTokens, r.PeakBytes, r.EndBytes);
        });
    }
}
