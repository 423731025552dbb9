using System.Diagnostics.CodeAnalysis;
using System.Globalization;
using System.Text;

namespace KvEvict;

/// <summary>
/// What survives an eviction: signal, shaping, budget. A policy is a value, its text form: change it with a <c>with</c>
/// expression or <see cref="With"/>. Two policies are equal if their texts are.
/// </summary>
/// <remarks>
/// <para>
/// Always kept: the first <see cref="Sink"/> tokens, the last <see cref="Recent"/>, the observation window
/// (unless <see cref="KeepWindow"/> is false) and protected positions; they count inside the budget. The rest
/// of the budget goes to the highest scores: descending, ties by <see cref="Tie"/>, NaN last.
/// </para>
/// <para>
/// A policy has the parameters that <see cref="ParametersOf"/> lists for it: the other properties throw
/// an <see cref="ArgumentException"/>, and so do values outside a parameter's range. Whether values can be combined is
/// checked by <see cref="Validate"/> and by calls that use the policy.
/// </para>
/// </remarks>
/// <example>
/// <code>
/// KvPolicy a = KvPolicy.Parse("snapkv:budget=2048,window=32");
/// KvPolicy b = new KvPolicy("pyramidkv") { Budget = 0.25, Sink = 8 };
/// KvPolicy c = KvPolicy.Parse("snapkv-kvpress");   // a preset, see KvPolicy.Presets
/// </code>
/// </example>
public sealed unsafe partial record KvPolicy
{
    private string _text;

    /// <summary>A policy or a preset, with its defaults.</summary>
    /// <param name="name">Its name, such as "snapkv", or all of a text form.</param>
    /// <exception cref="ArgumentNullException"><paramref name="name"/> is null.</exception>
    /// <exception cref="ArgumentException">There is no such policy.</exception>
    public KvPolicy(string name)
    {
        ArgumentNullException.ThrowIfNull(name);
        using PolicyHandle native = Create(name);
        _text = Format(native);
    }

    /// <summary>The policies of the text form.</summary>
    public static IReadOnlyList<KvPolicyInfo> All => PolicyTables.ReadPolicies();

    /// <summary>The presets: options that reproduce another implementation's keep sets.</summary>
    public static IReadOnlyList<KvPresetInfo> Presets => PolicyTables.ReadPresets();

    /// <summary>The parameters, which are the properties of policies, in the order of the text form.</summary>
    /// <param name="name">
    /// A policy or a preset selects those that it has, with its defaults. Null selects all, with the defaults of
    /// policies that do not change them.
    /// </param>
    /// <returns>A row per parameter.</returns>
    /// <exception cref="ArgumentException">There is no such policy.</exception>
    public static IReadOnlyList<KvParameterInfo> ParametersOf(string? name = null)
    {
        if (name is not null) _ = new KvPolicy(name);
        return PolicyTables.ReadParameters(name);
    }

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
        return new KvPolicy(text);
    }

    /// <summary>Reads the text form, if it is one. Never throws.</summary>
    /// <param name="text">See <see cref="Parse"/>.</param>
    /// <param name="policy">The policy if the text is valid.</param>
    /// <returns>Whether the text is valid; false without the native library.</returns>
    public static bool TryParse([NotNullWhen(true)] string? text, [NotNullWhen(true)] out KvPolicy? policy)
    {
        policy = null;
        if (text is null || text.Contains('\0') || !KvEvictLibrary.IsLoadable) return false;
        void* native;
        fixed (byte* utf8 = ZeroTerminated(text))
        {
            if (NativePINVOKE.kvevict_policy_create(utf8, &native) != KvStatus.Ok) return false;
        }
        NativePINVOKE.kvevict_policy_destroy(native);
        policy = new KvPolicy(text);
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

    /// <summary>This policy with some keys of the text form changed.</summary>
    /// <param name="keys">Such as "budget=0.25,sink=8".</param>
    /// <returns>A policy that is valid.</returns>
    /// <exception cref="ArgumentException"><see cref="Parse"/> refuses the result.</exception>
    public KvPolicy With(string keys) => Parse(_text + (_text.Contains(':') ? "," : ":") + keys);

    /// <summary>Checks whether the properties can be combined, for any context length.</summary>
    /// <exception cref="ArgumentException">They do not.</exception>
    public void Validate()
    {
        using PolicyHandle native = Open();
        Native.kvevict_policy_validate(native);
    }

    /// <summary>
    /// Turns the policy into token counts for a context length. If the context is left alone, the budget is all of
    /// it.
    /// </summary>
    /// <param name="contextTokens">Tokens, at least 1.</param>
    /// <returns>What would be kept.</returns>
    /// <exception cref="ArgumentException">
    /// The policy is invalid, or chunks of such a context keep more than a budget in tokens.
    /// </exception>
    public KvResolvedPolicy Resolve(int contextTokens)
    {
        using PolicyHandle native = Open();
        kvevict_resolved_policy r = new() { struct_size = (uint)sizeof(kvevict_resolved_policy) };
        Native.kvevict_policy_resolve(native, Check.Count(contextTokens, nameof(contextTokens)), &r);
        return new KvResolvedPolicy((int)r.budget, (int)r.n_sink, (int)r.n_recent, (int)r.n_selected,
                                    (int)r.n_query_rows, r.scores_are_mass != 0);
    }

    /// <summary>Tokens each layer keeps of a context: the budget spread by <see cref="Split"/>.</summary>
    /// <param name="contextTokens">Tokens, at least 1.</param>
    /// <param name="layerCount">Layers, at least 1.</param>
    /// <returns>Tokens per layer.</returns>
    /// <exception cref="ArgumentException">The policy or a number is wrong.</exception>
    public int[] LayerBudgets(int contextTokens, int layerCount)
    {
        using PolicyHandle native = Open();
        int[] budgets = new int[Check.Count(layerCount, nameof(layerCount))];
        fixed (int* tokens = budgets)
        {
            Native.kvevict_policy_layer_budgets(native, Check.Count(contextTokens, nameof(contextTokens)),
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
        using PolicyHandle native = Open();
        KvNeed need;
        Native.kvevict_policy_need(native, input, &need);
        return need;
    }

    /// <summary>The text form: the name and every key that differs from that policy's default.</summary>
    /// <returns>What <see cref="Parse"/> reads if the policy is valid.</returns>
    public override string ToString() => _text;

    // The native policy of the text. Its values are set one by one, since their combination may be invalid yet.
    internal PolicyHandle Open()
    {
        string[] parts = _text.Split(':', ',');
        PolicyHandle native = Create(parts[0]);
        foreach (string part in parts.AsSpan(1))
        {
            string[] pair = part.Split('=');
            Set(native, pair[0], pair[1]);
        }
        return native;
    }

    internal static byte[] ZeroTerminated(string text)
    {
        if (text.Contains('\0')) throw new ArgumentException("contains a zero character", nameof(text));
        return Encoding.UTF8.GetBytes(text + '\0');
    }

    private static PolicyHandle Create(string text)
    {
        var native = new PolicyHandle();
        fixed (byte* utf8 = ZeroTerminated(text)) Native.kvevict_policy_create(utf8, native);
        return native;
    }

    private static string Format(PolicyHandle native)
    {
        nuint length;
        Native.kvevict_policy_format(native, null, 0, &length);
        byte[] text = new byte[length + 1];
        fixed (byte* utf8 = text) Native.kvevict_policy_format(native, utf8, (nuint)text.Length, null);
        return Encoding.ASCII.GetString(text, 0, (int)length);
    }

    private static void Set(PolicyHandle native, string key, string value)
    {
        fixed (byte* name = ZeroTerminated(key), text = ZeroTerminated(value))
            Native.kvevict_policy_set(native, name, text);
    }

    // The properties, by kinds of parameters.
    private double ReadNumber(string key)
    {
        using PolicyHandle native = Open();
        double value;
        fixed (byte* name = ZeroTerminated(key)) Native.kvevict_policy_get_number(native, name, &value);
        return value;
    }

    private int ReadCount(string key) => Check.ToInt((ulong)ReadNumber(key));

    private bool ReadFlag(string key) => ReadNumber(key) != 0;

    private ulong ReadSeed(string key) => ulong.Parse(ReadWord(key), CultureInfo.InvariantCulture);

    private string ReadWord(string key)
    {
        using PolicyHandle native = Open();
        byte[] text = new byte[40]; // holds every value
        nuint length;
        fixed (byte* name = ZeroTerminated(key), utf8 = text)
            Native.kvevict_policy_get(native, name, utf8, (nuint)text.Length, &length);
        return Encoding.ASCII.GetString(text, 0, (int)length);
    }

    private void Set(string key, double value)
    {
        using PolicyHandle native = Open();
        fixed (byte* name = ZeroTerminated(key)) Native.kvevict_policy_set_number(native, name, value);
        _text = Format(native);
    }

    private void Set(string key, bool value) => Set(key, value ? 1.0 : 0.0);

    private void Set(string key, ulong value) => Set(key, value.ToString(CultureInfo.InvariantCulture));

    private void Set(string key, string value)
    {
        ArgumentNullException.ThrowIfNull(value, key);
        using PolicyHandle native = Open();
        Set(native, key, value);
        _text = Format(native);
    }
}
