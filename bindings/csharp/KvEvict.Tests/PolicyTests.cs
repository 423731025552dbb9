using System.Globalization;
using System.Reflection;
using Xunit;

namespace KvEvict.Tests;

public class PolicyTests
{
    [Fact]
    public void A_policy_is_its_text()
    {
        KvPolicy policy = KvPolicy.Parse("snapkv: window=64, budget=2048");
        Assert.Equal("snapkv:budget=2048,window=64", policy.ToString());
        var same = new KvPolicy("snapkv") { Window = 64, Budget = 2048 };
        Assert.Equal(policy, same);
        Assert.Equal(policy.GetHashCode(), same.GetHashCode());
        Assert.Equal(policy, new KvPolicy("snapkv").With("window=64").With("budget=2048"));
        KvPolicy other = policy with { Budget = 0.25 };
        Assert.Equal((2048, 0.25), (policy.Budget, other.Budget));
        Assert.NotEqual(policy, other);
        Assert.Equal(KvPolicy.Parse("snapkv-kvpress"), new KvPolicy("snapkv-kvpress"));
    }

    [Fact]
    public void Every_parameter_is_a_property()
    {
        PropertyInfo[] properties = typeof(KvPolicy).GetProperties(BindingFlags.Public | BindingFlags.Instance);
        IReadOnlyList<KvParameterInfo> rows = KvPolicy.ParametersOf();
        Assert.Equal(rows.Select(row => NameOf(row.Key)).Order(), properties.Select(p => p.Name).Order());
        foreach (KvParameterInfo row in rows)
        {
            PropertyInfo property = properties.Single(p => p.Name == NameOf(row.Key));
            Assert.NotEqual("", row.Doc);
            string name = KvPolicy.All.Select(policy => policy.Name)
                                  .First(policy => KvPolicy.ParametersOf(policy).Any(own => own.Key == row.Key));
            string before = KvPolicy.ParametersOf(name).Single(own => own.Key == row.Key).Default;
            var policy = new KvPolicy(name);
            Assert.Equal(before, TextOf(property.GetValue(policy)!));
            foreach (object value in OtherValues(row, before))
            {
                property.SetValue(policy, value);
                Assert.Equal(value, property.GetValue(policy));
                Assert.Contains($"{row.Key}={TextOf(value)}", policy.ToString().Split(':', ','));
            }
        }

        static string NameOf(string key) =>
            string.Concat(key.Split('_').Select(word => char.ToUpperInvariant(word[0]) + word[1..]));

        static string TextOf(object value) =>
            value is bool flag ? flag ? "yes" : "no" : Convert.ToString(value, CultureInfo.InvariantCulture)!;

        static object[] OtherValues(KvParameterInfo row, string before) => row.Type switch
        {
            KvParameterType.Number => [before == "0.5" ? 0.25 : 0.5],
            KvParameterType.Count => [(int)row.Least + 1],
            KvParameterType.CountOrShare => [0.25, 3.0],
            KvParameterType.Seed => [ulong.MaxValue],
            KvParameterType.Flag => [before == "no"],
            KvParameterType.Pool => ["max5"],
            _ => [.. row.Words.Split('|').Where(word => word != before)],
        };
    }

    [Fact]
    public void Values_go_together_where_the_policy_is_used()
    {
        var policy = new KvPolicy("streaming-llm") { Budget = 64, Sink = 64 };
        Assert.Equal((64, 64), (policy.Budget, policy.Sink));
        Assert.Contains("64", Assert.Throws<ArgumentException>(policy.Validate).Message);
        Assert.Throws<ArgumentException>(() => policy.Resolve(1000));
        Assert.Throws<ArgumentException>(() => policy.With("margin=1"));
        (policy with { Budget = 128 }).Validate();
    }

    [Fact]
    public void Wrong_values_are_refused()
    {
        Assert.Throws<ArgumentNullException>(() => new KvPolicy(null!));
        Assert.Throws<ArgumentNullException>(() => KvPolicy.Parse(null!));
        Assert.Throws<ArgumentNullException>(() => new KvPolicy("snapkv") { Pool = null! });
        Assert.Throws<ArgumentException>(() => KvPolicy.Parse("snapkv\0:budget=5"));
        Refused(() => new KvPolicy("snapkv") { Sink = -1 }, "sink", "-1");
        Refused(() => new KvPolicy("snapkv") { Margin = -1 }, "margin", "-1");
        Refused(() => new KvPolicy("snapkv") { Pool = "avg4" }, "pool", "avg4");
        Refused(() => new KvPolicy("snapkv") { Pool = "avg3,sink=1" }, "pool");
        Refused(() => new KvPolicy("knorm") { Window = 4 }, "knorm", "window");
        Refused(() => _ = new KvPolicy("knorm").Window, "knorm", "window");
        Assert.Throws<OverflowException>(() => KvPolicy.Parse("snapkv:every=4294967295").Every);

        static void Refused(Func<object> made, params string[] words)
        {
            string message = Assert.Throws<ArgumentException>(made).Message;
            Assert.All(words, word => Assert.Contains(word, message));
        }
    }

    [Theory]
    [InlineData("snapkv:budgte=5", 8)]
    [InlineData("snapkw", 1)]
    public void A_typo_says_where(string text, int column)
    {
        Assert.Contains($"column {column}", Assert.Throws<ArgumentException>(() => KvPolicy.Parse(text)).Message);
        Assert.False(KvPolicy.TryParse(text, out KvPolicy? policy));
        Assert.Null(policy);
        Assert.False(KvPolicy.TryParse(text + '\0', out _));
        Assert.False(KvPolicy.TryParse(null, out _));
        Assert.True(KvPolicy.TryParse("snapkv:budget=50", out policy));
        Assert.Equal(50, policy.Budget);
    }
}
