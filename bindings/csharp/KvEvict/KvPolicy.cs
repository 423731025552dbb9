using System.Diagnostics.CodeAnalysis;
using System.Runtime.InteropServices;
using System.Text;

namespace KvEvict;

/// <summary>
/// What survives an eviction: signal, shaping, budget. A value: change it with a <c>with</c> expression.
/// </summary>
/// <remarks>
/// Always kept: the first <see cref="Sink"/> tokens, the last <see cref="Recent"/>, the observation window
/// (unless <see cref="KeepWindow"/> is false) and protected positions; they count inside the budget. The rest
/// of the budget goes to the highest scores: descending, ties by <see cref="Tie"/>, NaN last.
/// </remarks>
/// <example>
/// <code>
/// KvPolicy a = KvPolicy.Parse("snapkv:budget=2048,window=32");
/// KvPolicy b = new KvPolicy(KvPolicyKind.PyramidKV) with { Budget = 0.25, Sink = 8 };
/// KvPolicy c = KvPolicy.Parse("snapkv-kvpress");   // a preset, see KvPolicy.Presets
/// </code>
/// </example>
public sealed unsafe record KvPolicy
{
    private kvevict_policy _native;

    /// <summary>The defaults of a kind of policy.</summary>
    /// <param name="kind">The kind; <see cref="KvPolicyKind.None"/> touches nothing.</param>
    /// <exception cref="ArgumentException">There is no such kind.</exception>
    public KvPolicy(KvPolicyKind kind)
    {
        kvevict_policy native;
        Native.kvevict_policy_init(&native, (nuint)sizeof(kvevict_policy), kind);
        _native = native;
    }

    private KvPolicy(kvevict_policy native) => _native = native;

    /// <summary>What ranks the tokens.</summary>
    public KvPolicyKind Kind => _native.kind;

    /// <summary>
    /// Tokens kept per KV head and layer (on average over the layers), everything included. (0, 1]: ratio of
    /// the context; above 1: a token count. 1: everything.
    /// </summary>
    public double Budget { get => _native.budget; init => _native.budget = value; }

    /// <summary>First tokens, always kept.</summary>
    public int Sink
    {
        get => (int)_native.n_sink;
        init { _native.n_sink = Check.Count(value, nameof(Sink)); _native.sink_share = 0; }
    }

    /// <summary>Above 0, the share of <see cref="Budget"/> that is kept in place of <see cref="Sink"/> tokens.</summary>
    public double SinkShare { get => _native.sink_share; init => _native.sink_share = value; }

    /// <summary>
    /// Last tokens, always kept. StreamingLLM: its window; 0 means budget - sink, otherwise the budget is
    /// sink + recent.
    /// </summary>
    public int Recent
    {
        get => (int)_native.n_recent;
        init { _native.n_recent = Check.Count(value, nameof(Recent)); _native.recent_share = 0; }
    }

    /// <summary>Above 0, the share of <see cref="Budget"/> that is kept in place of <see cref="Recent"/> tokens.</summary>
    public double RecentShare { get => _native.recent_share; init => _native.recent_share = value; }

    /// <summary>Last queries that score, at least 1.</summary>
    public int ObservationWindow
    {
        get => (int)_native.obs_window;
        init { _native.obs_window = Check.Count(value, nameof(ObservationWindow)); _native.window_share = 0; }
    }

    /// <summary>
    /// Above 0, the share of <see cref="Budget"/> whose last queries score, in place of
    /// <see cref="ObservationWindow"/>.
    /// </summary>
    public double WindowShare { get => _native.window_share; init => _native.window_share = value; }

    /// <summary>Whether the window's own tokens are kept, or ranked and pooled like others.</summary>
    public bool KeepWindow { get => _native.keep_window != 0; init => _native.keep_window = value ? 1u : 0; }

    /// <summary>Pooling of scores along the tokens.</summary>
    public KvPool Pool { get => _native.pool; init => _native.pool = value; }

    /// <summary>Odd width of the pooling up to 1023.</summary>
    public int PoolKernel
    {
        get => (int)_native.pool_kernel;
        init => _native.pool_kernel = Check.Count(value, nameof(PoolKernel));
    }

    /// <summary>What average pooling divides by at an edge.</summary>
    public KvPoolEdge PoolEdge { get => _native.pool_edge; init => _native.pool_edge = value; }

    /// <summary>How the window's rows, or the queries that saw a token, become one; of the latter there is no maximum.</summary>
    public KvReduce WindowReduce { get => _native.window_reduce; init => _native.window_reduce = value; }

    /// <summary>What a row's weights are multiplied by before rows are reduced.</summary>
    public KvRowWeight RowWeight { get => _native.row_weight; init => _native.row_weight = value; }

    /// <summary>The keys over which a row's softmax goes.</summary>
    public KvSoftmaxKeys SoftmaxKeys { get => _native.softmax_keys; init => _native.softmax_keys = value; }

    /// <summary>What is added to the mean of the window's rows: so many times their variance; at least 0.</summary>
    public double RowSpread { get => _native.row_spread; init => _native.row_spread = value; }

    // Rows of queries that score; 0: of any number.
    internal int QueryRows => Kind is KvPolicyKind.H2O or KvPolicyKind.NonCausal ? 0 : ObservationWindow;

    /// <summary>How the query heads of a KV head become one.</summary>
    public KvReduce GroupReduce { get => _native.group_reduce; init => _native.group_reduce = value; }

    /// <summary>Whether heads are reduced before pooling or after.</summary>
    public KvShapingOrder ShapingOrder { get => _native.shaping_order; init => _native.shaping_order = value; }

    /// <summary>What shares one keep list.</summary>
    public KvScope Scope { get => _native.scope; init => _native.scope = value; }

    /// <summary>How the heads (and layers) that share a list become one.</summary>
    public KvReduce ScopeReduce { get => _native.scope_reduce; init => _native.scope_reduce = value; }

    /// <summary>Which of two equal scores survives.</summary>
    public KvTie Tie { get => _native.tie; init => _native.tie = value; }

    /// <summary>How the budget is spread over the layers.</summary>
    public KvLayerSplit LayerSplit { get => _native.layer_split; init => _native.layer_split = value; }

    /// <summary>Ratio of the geometric split, in (0, 1].</summary>
    public double PyramidAlpha { get => _native.pyramid_alpha; init => _native.pyramid_alpha = value; }

    /// <summary>Of the split CAKE: the root that is taken of a layer's entropy, in [0.01, 100].</summary>
    public double CakeTau1 { get => _native.cake_tau1; init => _native.cake_tau1 = value; }

    /// <summary>Of the split CAKE: the root that is taken of a layer's variance, in [0.01, 100].</summary>
    public double CakeTau2 { get => _native.cake_tau2; init => _native.cake_tau2 = value; }

    /// <summary>The attention to both ends above which a layer is lazy, in [0, 1]; 1: never.</summary>
    public double LazyThreshold { get => _native.lazy_threshold; init => _native.lazy_threshold = value; }

    /// <summary>Steepness of the arithmetic splits, at least 1.</summary>
    public int PyramidBeta
    {
        get => (int)_native.pyramid_beta;
        init => _native.pyramid_beta = Check.Count(value, nameof(PyramidBeta));
    }

    /// <summary>Seed of the random policy.</summary>
    public ulong Seed { get => _native.seed; init => _native.seed = value; }

    /// <summary>Tokens that are compared with each other.</summary>
    public int Block { get => (int)_native.block; init => _native.block = Check.Count(value, nameof(Block)); }

    /// <summary>Neighbouring slots that stay or go together; 1: each by itself.</summary>
    public int SelectBlock
    {
        get => (int)_native.select_block;
        init => _native.select_block = Check.Count(value, nameof(SelectBlock));
    }

    /// <summary>
    /// Neighbouring slots that are scored and chosen from as if they were the cache; 0: all at once.
    /// </summary>
    public int Chunk { get => (int)_native.chunk; init => _native.chunk = Check.Count(value, nameof(Chunk)); }

    /// <summary>
    /// The weight of each token: a shaped score becomes (score + <see cref="WeightEpsilon"/>) * weight.
    /// </summary>
    public KvValueWeight ValueWeight { get => _native.value_weight; init => _native.value_weight = value; }

    /// <summary>What is added to a shaped score before it is multiplied by the weight; at least 0.</summary>
    public double WeightEpsilon { get => _native.weight_epsilon; init => _native.weight_epsilon = value; }

    /// <summary>The share that the likeness of keys has in a score, in [0, 1].</summary>
    public double Redundancy { get => _native.redundancy; init => _native.redundancy = value; }

    /// <summary>The cosine above which keys are similar, in [0, 1].</summary>
    public double Similarity { get => _native.similarity; init => _native.similarity = value; }

    /// <summary>The share of what a head keeps that goes to shaped scores alone, before they are weighed, in [0, 1].</summary>
    public double Secure { get => _native.secure; init => _native.secure = value; }

    /// <summary>LagKV: whether a token scores by its place within its partition.</summary>
    public bool LagRanks { get => _native.lag_ranks != 0; init => _native.lag_ranks = value ? 1u : 0; }

    /// <summary>LagKV: whether the budget is that of each partition.</summary>
    public bool BudgetOfPartition
    {
        get => _native.budget_of_partition != 0;
        init => _native.budget_of_partition = value ? 1u : 0;
    }

    /// <summary>How the KV heads of a layer share its budget.</summary>
    public KvHeadSplit HeadSplit { get => _native.head_split; init => _native.head_split = value; }

    /// <summary>What adaptive heads keep of a head's budget whatever others have, in [0, 1].</summary>
    public double HeadFloor { get => _native.head_floor; init => _native.head_floor = value; }

    /// <summary>The least score that heads by threshold keep.</summary>
    public double ScoreThreshold { get => _native.score_threshold; init => _native.score_threshold = value; }

    /// <summary>What becomes of the rows that go.</summary>
    public KvMerge Merge { get => _native.merge; init => _native.merge = value; }

    /// <summary>Values that merge: the least similarity of their keys, in [0, 1].</summary>
    public double MergeThreshold { get => _native.merge_threshold; init => _native.merge_threshold = value; }

    /// <summary>Values that merge: the part of those that go, the most similar, in (0, 1].</summary>
    public double MergeFraction { get => _native.merge_fraction; init => _native.merge_fraction = value; }

    /// <summary>Whether heads compete by scores times the share that their best have in the sum of them.</summary>
    public bool HeadNormalize { get => _native.head_normalize != 0; init => _native.head_normalize = value ? 1u : 0; }

    /// <summary>Whether keys that move are turned by RoPE to their new slots.</summary>
    public bool Rotate { get => _native.rotate != 0; init => _native.rotate = value ? 1u : 0; }

    /// <summary>Evictions leave a layer alone that holds at most so many tokens more than it would keep.</summary>
    public int Margin { get => (int)_native.margin; init => _native.margin = Check.Count(value, nameof(Margin)); }

    /// <summary>Behind the prompt's end an eviction works once per so many tokens; 0: every one does.</summary>
    public int Every { get => (int)_native.every; init => _native.every = Check.Count(value, nameof(Every)); }

    /// <summary>How the prompt counts, once it has ended.</summary>
    public KvPrompt Prompt { get => _native.prompt; init => _native.prompt = value; }

    /// <summary>So many of the blocks that would go stay on top of the budget.</summary>
    public int Rescue { get => (int)_native.rescue; init => _native.rescue = Check.Count(value, nameof(Rescue)); }

    /// <summary>Against what blocks are held of which some are rescued.</summary>
    public KvAnchor Anchor { get => _native.anchor; init => _native.anchor = value; }

    /// <summary>Whose attention a sequence adds up in one row of sums.</summary>
    public KvSumRows SumRows { get => _native.sum_rows; init => _native.sum_rows = value; }

    /// <summary>Of a slot and the next ones, so many in all, the most attention is added to its sum.</summary>
    public int SumPool { get => (int)_native.sum_pool; init => _native.sum_pool = Check.Count(value, nameof(SumPool)); }

    /// <summary>Above 0, the share of the mass up to which the best blocks stay; others by how unlike their keys are.</summary>
    public double DiverseMass { get => _native.diverse_mass; init => _native.diverse_mass = value; }

    /// <summary>Above 0, sums are of so many last calls alone, and of none before a layer's last eviction.</summary>
    public int SumLast { get => (int)_native.sum_last; init => _native.sum_last = Check.Count(value, nameof(SumLast)); }

    /// <summary>Whether a layer's first call is not pooled, as long as it is the only one.</summary>
    public bool SumRawFirst { get => _native.sum_raw_first != 0; init => _native.sum_raw_first = value ? 1u : 0; }

    /// <summary>The policies, as in the text form.</summary>
    public static IReadOnlyList<KvPolicyInfo> All => PolicyTables.ReadPolicies();

    /// <summary>The presets: the options under which another implementation's keep sets come out.</summary>
    public static IReadOnlyList<KvPresetInfo> Presets => PolicyTables.ReadPresets();

    /// <summary>
    /// Reads the text form: <c>name</c> or <c>name:key=value,key=value</c> with the name of a policy or a
    /// preset.
    /// </summary>
    /// <param name="text">Such as "snapkv:budget=2048,sink=4,window=32,pool=avg7".</param>
    /// <returns>A policy that is valid.</returns>
    /// <exception cref="ArgumentNullException"><paramref name="text"/> is null.</exception>
    /// <exception cref="ArgumentException">
    /// The text cannot be read: the message has the column and what was expected there.
    /// </exception>
    public static KvPolicy Parse(string text)
    {
        ArgumentNullException.ThrowIfNull(text);
        kvevict_policy native = new() { struct_size = (uint)sizeof(kvevict_policy) };
        fixed (byte* utf8 = ZeroTerminated(text)) Native.kvevict_policy_parse(utf8, &native);
        return new KvPolicy(native);
    }

    /// <summary>Reads the text form, if it is one. Never throws.</summary>
    /// <param name="text">As for <see cref="Parse"/>.</param>
    /// <param name="policy">The policy, if it was.</param>
    /// <returns>Whether it was; false without the native library.</returns>
    public static bool TryParse([NotNullWhen(true)] string? text, [NotNullWhen(true)] out KvPolicy? policy)
    {
        policy = null;
        if (text is null || text.Contains('\0') || !KvEvictLibrary.IsLoadable) return false;
        kvevict_policy native = new() { struct_size = (uint)sizeof(kvevict_policy) };
        fixed (byte* utf8 = ZeroTerminated(text))
        {
            if (NativePINVOKE.kvevict_policy_parse(utf8, &native) != KvStatus.Ok) return false;
        }
        policy = new KvPolicy(native);
        return true;
    }

    /// <summary>
    /// Suggests a budget for a model: min(maxTokens / 4, 4096), at least 1024; 0, do not evict, while the full
    /// cache is under 256 MiB.
    /// </summary>
    /// <param name="maxTokens">The model's context length.</param>
    /// <param name="fullCacheBytes">K and V of all layers at that length.</param>
    /// <returns>Tokens.</returns>
    /// <exception cref="ArgumentException"><paramref name="maxTokens"/> is 0.</exception>
    public static int AutoBudget(int maxTokens, long fullCacheBytes)
    {
        ArgumentOutOfRangeException.ThrowIfNegative(fullCacheBytes);
        uint budget;
        Native.kvevict_auto_budget(Check.Count(maxTokens, nameof(maxTokens)), (ulong)fullCacheBytes, &budget);
        return Check.ToInt(budget);
    }

    /// <summary>Checks every property and their combination, for any context length.</summary>
    /// <exception cref="ArgumentException">One is wrong, or they do not go together.</exception>
    public void Validate()
    {
        kvevict_policy native = _native;
        Native.kvevict_policy_validate(&native);
    }

    /// <summary>
    /// Turns the policy into token counts for a context length. A context that is left alone has a budget of all of
    /// it.
    /// </summary>
    /// <param name="contextTokens">Tokens, at least 1.</param>
    /// <returns>What would be kept.</returns>
    /// <exception cref="ArgumentException">
    /// The policy is invalid, or chunks of such a context keep more than a budget in tokens.
    /// </exception>
    public KvResolvedPolicy Resolve(int contextTokens)
    {
        kvevict_policy native = _native;
        kvevict_resolved_policy r = new() { struct_size = (uint)sizeof(kvevict_resolved_policy) };
        Native.kvevict_policy_resolve(&native, Check.Count(contextTokens, nameof(contextTokens)), &r);
        return new KvResolvedPolicy((int)r.budget, (int)r.n_sink, (int)r.n_recent, (int)r.n_selected,
                                    (int)r.obs_window, r.scores_are_mass != 0);
    }

    /// <summary>Tokens each layer keeps of a context: the budget spread by <see cref="LayerSplit"/>.</summary>
    /// <param name="contextTokens">Tokens, at least 1.</param>
    /// <param name="layerCount">Layers, at least 1.</param>
    /// <returns>Tokens per layer.</returns>
    /// <exception cref="ArgumentException">The policy or a number is wrong.</exception>
    public int[] LayerBudgets(int contextTokens, int layerCount)
    {
        kvevict_policy native = _native;
        int[] budgets = new int[Check.Count(layerCount, nameof(layerCount))];
        fixed (int* tokens = budgets)
        {
            Native.kvevict_policy_layer_budgets(&native, Check.Count(contextTokens, nameof(contextTokens)),
                                                (uint*)tokens, (nuint)budgets.Length);
        }
        return budgets;
    }

    /// <summary>Whether this policy wants an input, so that an engine makes no others.</summary>
    /// <param name="input">Rows of a view, or a part of <see cref="KvSignalInputs"/>.</param>
    /// <returns>Whether it is read, and whether calls fail without it.</returns>
    /// <exception cref="ArgumentException">The policy is not valid, or there is no such input.</exception>
    public KvNeed NeedOf(KvInput input)
    {
        kvevict_policy native = _native;
        KvNeed need;
        Native.kvevict_policy_need(&native, input, &need);
        return need;
    }

    /// <summary>The text form: the name and every key that differs from that policy's default.</summary>
    /// <returns>What <see cref="Parse"/> reads; a note if the policy is not valid.</returns>
    public override string ToString()
    {
        kvevict_policy native = _native;
        nuint length;
        if (NativePINVOKE.kvevict_policy_format(&native, null, 0, &length) != KvStatus.Ok) return $"{Kind}: not valid";
        byte[] text = new byte[length + 1];
        fixed (byte* utf8 = text) Native.kvevict_policy_format(&native, utf8, (nuint)text.Length, null);
        return Encoding.ASCII.GetString(text, 0, (int)length);
    }

    /// <summary>Whether all properties are equal.</summary>
    /// <param name="other">Another policy.</param>
    /// <returns>True if they are.</returns>
    public bool Equals(KvPolicy? other) => other is not null && Bytes.SequenceEqual(other.Bytes);

    /// <summary>A hash of all properties.</summary>
    /// <returns>The hash.</returns>
    public override int GetHashCode()
    {
        var hash = new HashCode();
        hash.AddBytes(Bytes);
        return hash.ToHashCode();
    }

    internal kvevict_policy ToNative() => _native;

    // The struct has no padding: equal bytes are equal properties.
    private ReadOnlySpan<byte> Bytes => MemoryMarshal.AsBytes(new ReadOnlySpan<kvevict_policy>(in _native));

    private static byte[] ZeroTerminated(string text)
    {
        if (text.Contains('\0')) throw new ArgumentException("contains a zero character", nameof(text));
        return Encoding.UTF8.GetBytes(text + '\0');
    }
}
