namespace KvEvict;

/// <summary>A policy in tokens, for one context length.</summary>
/// <param name="Budget">Tokens kept in all.</param>
/// <param name="Sink">First tokens kept.</param>
/// <param name="Recent">Last tokens kept, the observation window included.</param>
/// <param name="Selected">Tokens chosen by score.</param>
/// <param name="ObservationWindow">Last queries that score; 0 if none do.</param>
/// <param name="ScoresAreMass">Whether the scores by which lists are chosen are a mass.</param>
public readonly record struct KvResolvedPolicy(
    int Budget, int Sink, int Recent, int Selected, int ObservationWindow, bool ScoresAreMass);

/// <summary>A row of the table of policies.</summary>
/// <param name="Kind">Its number.</param>
/// <param name="Name">As in the text form.</param>
/// <param name="Signal">What ranks a token.</param>
/// <param name="Shaping">What happens to the numbers.</param>
/// <param name="Budget">How many survive, where.</param>
/// <param name="Trigger">When it runs.</param>
/// <param name="Paper">Source, such as "arXiv:2404.14469"; "" if there is none.</param>
public sealed record KvPolicyInfo(
    KvPolicyKind Kind, string Name, string Signal, string Shaping, string Budget, string Trigger, string Paper);

/// <summary>A preset: the options under which another implementation's keep sets come out.</summary>
/// <param name="Name">As in the text form.</param>
/// <param name="PolicyText">The same policy spelled out.</param>
/// <param name="Reproduces">Whose behaviour this is.</param>
public sealed record KvPresetInfo(string Name, string PolicyText, string Reproduces);

// The library's tables end with a status, which is no failure here.
internal static unsafe class PolicyTables
{
    internal static KvPolicyInfo[] ReadPolicies()
    {
        var rows = new List<KvPolicyInfo>();
        kvevict_policy_info row = new() { struct_size = (uint)sizeof(kvevict_policy_info) };
        while (NativePINVOKE.kvevict_policy_at((uint)rows.Count, &row) == KvStatus.Ok)
        {
            rows.Add(new KvPolicyInfo(row.kind, KvEvictLibrary.Text(row.name), KvEvictLibrary.Text(row.signal),
                                      KvEvictLibrary.Text(row.shaping), KvEvictLibrary.Text(row.budget),
                                      KvEvictLibrary.Text(row.trigger), KvEvictLibrary.Text(row.paper)));
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
