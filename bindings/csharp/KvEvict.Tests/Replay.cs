using Xunit;

namespace KvEvict.Tests;

/// <summary>The structs of a transcript as values of C#.</summary>
internal class Replay
{
    protected SortedDictionary<string, Line> Structs { get; } = new(StringComparer.Ordinal);
    protected SortedDictionary<string, Data> Buffers { get; } = new(StringComparer.Ordinal);
    protected Dictionary<string, object> Handles { get; } = [];

    protected Line Struct(string kind, string name)
    {
        Assert.True(Structs.TryGetValue(name, out Line? line) && line.Name == kind, $"no {kind} {name}");
        return line;
    }

    /// <summary>The handle that a key of a line names.</summary>
    protected T Handle<T>(Line line, string? key = null) => (T)Handles[line.Text(key ?? KeyOf<T>())];

    private static string KeyOf<T>() => typeof(T).Name switch
    {
        nameof(KvPagedSequence) => "cached",
        nameof(KvPagedCache) => "cache",
        var name => name[2..].ToLowerInvariant(),
    };

    protected KvRegion Memory(string name) => name.Length == 0 ? default : Buffers[name].Region;

    protected static KvRegion Scratch(Line line, string key = "workspace") =>
        line.Int(key) is var bytes and > 0 ? new Data("u8", bytes).Region : default;

    private float[] Floats(string name) => name.Length == 0 ? [] : Buffers[name].Span<float>().ToArray();

    protected KvPlane Plane(string name)
    {
        if (name.Length == 0) return default;
        Line l = Struct("plane", name);
        return l.Apply(new KvPlane
        {
            Region = Memory(l.Text("data")),
            Offset = l.Long("offset"),
            AddressTable = Memory(l.Text("address_table")),
        });
    }

    protected KvView View(string name)
    {
        if (name == "-") return null!;
        if (Handles.GetValueOrDefault(name) is KvView lent) return lent;
        Line l = Struct("view", name);
        return l.Apply(new KvView(l.Int("n_kv_heads"), Plane(l.Text("k")), Plane(l.Text("v")))
        {
            Companions = l.Each("companions", Plane),
            BlockTable = Memory(l.Text("block_table")),
        });
    }

    protected KvSignalInputs Inputs(string name)
    {
        if (name is "" or "-") return default;
        Line l = Struct("signal_inputs", name);
        return l.Apply(new KvSignalInputs
        {
            Queries = Plane(l.Text("queries")),
            RowLse = Plane(l.Text("row_lse")),
            Scores = Plane(l.Text("scores")),
            AttentionSums = Plane(l.Text("attention_sums")),
            QueryMean = Plane(l.Text("query_mean")),
            QueryCovariance = Plane(l.Text("query_covariance")),
            KeyFilter = Plane(l.Text("key_filter")),
            TokenWeights = Plane(l.Text("token_weights")),
            QueryCenters = Plane(l.Text("query_centers")),
            ReferenceQueries = Plane(l.Text("reference_queries")),
            ReferencePositions = Memory(l.Text("reference_positions")),
        });
    }

    private KvLayerGeometry Layer(string name)
    {
        Line l = Struct("layer_geometry", name);
        return l.Apply(new KvLayerGeometry
        {
            QueryHeads = l.Int("n_q_heads"),
            KvHeads = l.Int("n_kv_heads"),
            KeyHeadDim = l.Int("k_head_dim"),
            ValueHeadDim = l.Int("v_head_dim"),
        });
    }

    protected KvGeometry Geometry(string name)
    {
        Line l = Struct("geometry", name);
        KvLayerGeometry[] layers = l.Each("layers", Layer);
        int count = l.Int("n_layers"), maxTokens = l.Int("max_tokens");
        float[] rope = Floats(l.Text("rope_inv_freq")), sinks = Floats(l.Text("sink_logits"));
        var layout = (KvRopeLayout)l.Int("rope_layout");
        if (layers.Length == 1)
        {
            return new KvGeometry(count, layers[0], maxTokens)
            {
                RopeInverseFrequencies = rope, SinkLogits = sinks, RopeLayout = layout,
            };
        }
        Assert.Equal(count, layers.Length);
        return new KvGeometry(layers, maxTokens)
        {
            RopeInverseFrequencies = rope, SinkLogits = sinks, RopeLayout = layout,
        };
    }

    protected KvPlan Plan(Line line)
    {
        var context = Handle<KvContext>(line);
        KvGeometry geometry = Geometry(line.Text("geometry"));
        var policy = Handle<KvPolicy>(line);
        if (!line.Has("options")) return new KvPlan(context, geometry, policy);
        Line l = Struct("plan_options", line.Text("options"));
        return new KvPlan(context, geometry, policy, l.Apply(new KvPlanOptions
        {
            HeadBudgets = l.Ints("head_budgets"),
            LayerBudgets = l.Each("layer_budgets", text => double.Parse(text)),
        }));
    }

    protected KvScoreJob ScoreJob(string name)
    {
        Line l = Struct("score_job", name);
        // The binding asks for a view, even if no row is read.
        KvView view = l.Has("view") ? View(l.Text("view")) : new KvView(2, default);
        return l.Apply(new KvScoreJob(l.Int("layer"), view, l.Int("n_tokens"))
        {
            TokenCounts = Memory(l.Text("token_counts")),
            Inputs = Inputs(l.Text("inputs")),
            Scores = Memory(l.Text("scores")),
        });
    }

    protected KvKeepLists KeepLists(string name)
    {
        Line l = Struct("keep_lists", name);
        return l.Apply(new KvKeepLists(Memory(l.Text("slots")), l.Int("count"), l.Int("n_lists"))
        {
            Counts = Memory(l.Text("counts")),
        });
    }

    protected KvTokenRange Range(string name)
    {
        Line l = Struct("token_range", name);
        return new KvTokenRange(l.Int("first"), l.Int("end"), l.Int("rank"));
    }

    protected KvEdit Edit(string name)
    {
        Line l = Struct("edit", name);
        return l.Apply(new KvEdit(l.Int("first"), l.Int("end")));
    }

    protected KvSelectOptions SelectOptions(string name)
    {
        Line l = Struct("select_options", name);
        return l.Apply(new KvSelectOptions
        {
            TokenCounts = Memory(l.Text("token_counts")),
            Scores = Memory(l.Text("scores")),
            ProtectedSlots = l.Ints("protected_slots"),
            Ranges = l.Each("ranges", Range),
        });
    }

    protected KvMove Move(string name)
    {
        Line l = Struct("move", name);
        KvView view = View(l.Text("view"));
        KvView? to = !l.Has("destination") ? null
            : l.Text("destination") == l.Text("view") ? view : View(l.Text("destination")); // a view is itself alone
        int count = l.Int("n_tokens");
        KvMove move = l.Has("keep") ? new KvMove(view, count, KeepLists(l.Text("keep"))) { Destination = to }
            : KvMove.All(view, count, to!);
        return l.Apply(move with { TokenCounts = Memory(l.Text("token_counts")) });
    }

    protected KvRotation Rotation(string name)
    {
        Line l = Struct("rotation", name);
        return new KvRotation(l.Int("layer"), View(l.Text("view")), l.Int("n_tokens"), Memory(l.Text("offsets")),
                              l.Int("n_lists")) { TokenCounts = Memory(l.Text("token_counts")) };
    }

    protected KvAttention Attention(string name)
    {
        Line l = Struct("attention_job", name);
        return l.Apply(new KvAttention(View(l.Text("view")), l.Int("n_tokens"), l.Int("n_q_heads"), l.Int("n_queries"),
                               Plane(l.Text("queries")), Plane(l.Text("out")))
        {
            TokenCounts = Memory(l.Text("token_counts")),
            SinkLogits = Memory(l.Text("sink_logits")),
            RowLse = Plane(l.Text("row_lse")),
            AttentionSums = Plane(l.Text("attention_sums")),
        });
    }

    protected KvLayerScores LayerScores(string name)
    {
        Line l = Struct("layer_scores", name);
        float[] scores = Floats(l.Text("scores"));
        Assert.Equal(l.Int("n_rows") * l.Int("n_tokens"), scores.Length);
        return new KvLayerScores(scores, l.Int("n_rows"));
    }

    protected KvMassOptions MassOptions(string name)
    {
        Line l = Struct("mass_options", name);
        return l.Apply(new KvMassOptions(l.Double("mass")));
    }

    protected KvObservation Observation(string name)
    {
        Line l = Struct("observation", name);
        return new KvObservation(l.Int("layer"), Inputs(l.Text("inputs")));
    }

    /// <summary>A first position, where null stands for the sequence's end.</summary>
    protected static int? FirstPosition(Line line) =>
        line.Long("first_position") is var position and < uint.MaxValue ? (int)position : null;

    protected KvEvictOptions Options(string name)
    {
        if (name.Length == 0) return default;
        Line l = Struct("evict_options", name);
        return l.Apply(new KvEvictOptions
        {
            ProtectedPositions = l.Ints("protected_positions"),
            Inputs = l.Each("inputs", Inputs),
            Undo = Memory(l.Text("undo")),
            Ranges = l.Each("ranges", Range),
            Destinations = l.Each("destinations", View),
        });
    }

    protected int[][]? PositionLists(string name) => name == "-" ? null :
        [.. Struct("position_lists", name).List("positions", '/').Select(
            list => list.Split(',').Select(int.Parse).ToArray())];

    protected KvPagedCacheOptions PagedCacheOptions(string name)
    {
        Line l = Struct("paged_cache_options", name);
        return l.Apply(new KvPagedCacheOptions(l.Int("n_blocks")) { Memory = Memory(l.Text("memory")) });
    }

    protected KvPagedRows PagedRows(string name)
    {
        Line l = Struct("paged_rows", name);
        return new KvPagedRows(l.Int("layer"), l.Int("first_slot"), l.Int("n_tokens"), Plane(l.Text("k")),
                               Plane(l.Text("v")));
    }
}
