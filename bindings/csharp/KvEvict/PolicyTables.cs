namespace KvEvict;

/// <summary>A policy in tokens, for one context length.</summary>
/// <param name="Budget">Tokens kept in all.</param>
/// <param name="Sink">First tokens kept.</param>
/// <param name="Recent">Last tokens kept, the observation window included.</param>
/// <param name="Selected">Tokens chosen by score.</param>
/// <param name="QueryRows">
/// The query rows that score a layer: the observation window of policies that have one; <see cref="AnyQueryRows"/>
/// if it is as many as are given; <see cref="AllQueryRows"/> if it is one for each slot held; 0 if queries are
/// not read.
/// </param>
/// <param name="ScoresAreMass">Whether the scores that choose lists are a mass.</param>
public readonly record struct KvResolvedPolicy(
    int Budget, int Sink, int Recent, int Selected, int QueryRows, bool ScoresAreMass)
{
    /// <summary>As many query rows as are given (h2o).</summary>
    public const int AnyQueryRows = unchecked((int)NativeConstants.KVEVICT_QUERY_ROWS_ANY);

    /// <summary>A query row for each slot held (non-causal).</summary>
    public const int AllQueryRows = unchecked((int)NativeConstants.KVEVICT_QUERY_ROWS_ALL);
}

/// <summary>A row of the table of policies.</summary>
/// <param name="Name">Its name in the text form.</param>
/// <param name="Signal">What ranks a token.</param>
/// <param name="Summary">What it keeps, in words.</param>
/// <param name="Trigger">When it runs.</param>
/// <param name="Paper">Source, such as "arXiv:2404.14469"; "" if there is none.</param>
/// <param name="Defaults">
/// Parameters whose default differs from the library's, in the text form; "" if there are none.
/// </param>
public sealed record KvPolicyInfo(
    string Name, string Signal, string Summary, string Trigger, string Paper, string Defaults);

/// <summary>A preset: options that reproduce another implementation's keep sets.</summary>
/// <param name="Name">Its name in the text form.</param>
/// <param name="PolicyText">The same policy spelled out.</param>
/// <param name="Reproduces">The implementation that it reproduces.</param>
public sealed record KvPresetInfo(string Name, string PolicyText, string Reproduces);

/// <summary>A parameter of policies.</summary>
/// <param name="Key">Its name in the text form.</param>
/// <param name="Type">What its values are.</param>
/// <param name="Words">Its words, such as "mean|max|sum"; "" for numbers.</param>
/// <param name="Doc">What it does, in sentences.</param>
/// <param name="Least">The least number or count; otherwise 0.</param>
/// <param name="Most">The largest number or count; otherwise 0.</param>
/// <param name="ExcludesLeast">Whether values must be above <paramref name="Least"/>.</param>
/// <param name="TakesZero">Whether 0 is allowed as well.</param>
/// <param name="Default">Its default in the text form.</param>
public sealed record KvParameterInfo(
    string Key, KvParameterType Type, string Words, string Doc, double Least, double Most, bool ExcludesLeast,
    bool TakesZero, string Default);

// The library ends a table with a status, which is no failure here.
internal static unsafe class PolicyTables
{
    internal static KvPolicyInfo[] ReadPolicies()
    {
        var rows = new List<KvPolicyInfo>();
        kvevict_policy_info row = new() { struct_size = (uint)sizeof(kvevict_policy_info) };
        while (NativePINVOKE.kvevict_policy_at((uint)rows.Count, &row) == KvStatus.Ok)
        {
            rows.Add(new KvPolicyInfo(KvEvictLibrary.Text(row.name), KvEvictLibrary.Text(row.signal),
                                      KvEvictLibrary.Text(row.summary),
                                      KvEvictLibrary.Text(row.trigger), KvEvictLibrary.Text(row.paper),
                                      KvEvictLibrary.Text(row.defaults)));
        }
        return [.. rows];
    }

    internal static KvParameterInfo[] ReadParameters(string? policy)
    {
        var rows = new List<KvParameterInfo>();
        kvevict_parameter_info row = new() { struct_size = (uint)sizeof(kvevict_parameter_info) };
        fixed (byte* name = policy is null ? null : KvPolicy.ZeroTerminated(policy))
        {
            while (NativePINVOKE.kvevict_parameter_at(name, (uint)rows.Count, &row) == KvStatus.Ok)
            {
                rows.Add(new KvParameterInfo(KvEvictLibrary.Text(row.key), row.type, KvEvictLibrary.Text(row.words),
                                             KvEvictLibrary.Text(row.doc), row.least, row.most, row.excludes_least != 0,
                                             row.takes_zero != 0, KvEvictLibrary.Text(row.default_text)));
            }
        }
        return [.. rows];
    }

    internal static KvPresetInfo[] ReadPresets()
    {
        var rows = new List<KvPresetInfo>();
        kvevict_preset_info row = new() { struct_size = (uint)sizeof(kvevict_preset_info) };
        while (NativePINVOKE.kvevict_preset_at((uint)rows.Count, &row) == KvStatus.Ok)
        {
            rows.Add(new KvPresetInfo(KvEvictLibrary.Text(row.name), KvEvictLibrary.Text(row.policy_text),
                                      KvEvictLibrary.Text(row.reproduces)));
        }
        return [.. rows];
    }
}
