using System.IO.Compression;
using System.Reflection.Metadata;
using System.Reflection.PortableExecutable;
using System.Text;
using System.Text.Json;
using System.Xml.Linq;
using Xunit;

namespace KvEvict.Tests;

/// <summary>The contents of the package and its symbols, and what the loader says if they do not suffice.</summary>
public sealed class PackageTests
{
    private static readonly Guid s_sourceLink = new("CC110556-A091-4D38-9FEC-25AB9A351A6A");
    private static readonly Guid s_embeddedSource = new("0E8A571B-6926-466E-B4AD-8AB04611F5FE");

    [PackageFact]
    public void It_says_whose_it_is()
    {
        XElement metadata = Nuspec();
        string Text(string name) => (string)metadata.Elements().Single(e => e.Name.LocalName == name);
        XElement repository = metadata.Elements().Single(e => e.Name.LocalName == "repository");
        Assert.Equal("git", (string?)repository.Attribute("type"));
        Assert.StartsWith("https://", (string?)repository.Attribute("url"));
        Assert.Equal((string?)repository.Attribute("url"), Text("projectUrl"));
        Assert.Equal("MIT", Text("license"));
        Assert.Equal("README.md", Text("readme"));
        byte[] icon = Read("nupkg", Text("icon"));
        Assert.Equal([0x89, (byte)'P', (byte)'N', (byte)'G'], icon[..4]);
        Assert.Equal([0, 0, 0, 128, 0, 0, 0, 128], icon[16..24]); // what nuget.org shows
        string notice = Encoding.ASCII.GetString(Read("nupkg", "NOTICE"));
        Assert.Contains("Highway", notice);
        Assert.Contains("Redistributions in binary form must reproduce", notice);
    }

    [PackageFact]
    public void It_states_the_glibc_that_it_needs()
    {
        Assert.Contains($"glibc {NativePlatform.Glibc} or later",
                        Encoding.UTF8.GetString(Read("nupkg", "README.md")));
        Assert.Contains($"(Linux: glibc {NativePlatform.Glibc} or later)",
                        Encoding.UTF8.GetString(Read("nupkg", "buildTransitive/KvEvict.targets")));
    }

    [PackageFact]
    public void It_has_nobodys_paths()
    {
        byte[][] paths =
        [
            Encoding.UTF8.GetBytes(Environment.GetEnvironmentVariable("KVEVICT_TEST_SOURCE")! + "/"),
            Encoding.UTF8.GetBytes(Environment.GetEnvironmentVariable("KvEvictBuild")! + "/"),
        ];
        foreach (string extension in new[] { "nupkg", "snupkg" })
        {
            using ZipArchive package = Open(extension);
            foreach (ZipArchiveEntry entry in package.Entries)
            {
                byte[] content = Content(entry);
                Assert.All(paths, path => Assert.True(content.AsSpan().IndexOf(path) < 0, entry.FullName));
            }
        }
        foreach (string framework in Frameworks())
        {
            using var assembly = new PEReader(new MemoryStream(Read("nupkg", $"lib/{framework}/KvEvict.dll")));
            DebugDirectoryEntry codeView = assembly.ReadDebugDirectory().Single(
                e => e.Type == DebugDirectoryEntryType.CodeView);
            Assert.Matches("^/_|^KvEvict.pdb$", assembly.ReadCodeViewDebugDirectoryData(codeView).Path);
        }
    }

    [PackageFact]
    public void Every_source_can_be_found()
    {
        string? commit = (string?)Nuspec().Descendants().Single(e => e.Name.LocalName == "repository").Attribute("commit");
        foreach (string framework in Frameworks())
        {
            byte[] symbols = Read("snupkg", $"lib/{framework}/KvEvict.pdb");
            using var provider = MetadataReaderProvider.FromPortablePdbStream(new MemoryStream(symbols));
            MetadataReader pdb = provider.GetMetadataReader();
            var information = pdb.CustomDebugInformation.Select(pdb.GetCustomDebugInformation).ToList();
            var embedded = information.Where(i => pdb.GetGuid(i.Kind) == s_embeddedSource)
                                      .Select(i => i.Parent).ToHashSet();
            Dictionary<string, string> links = [];
            foreach (CustomDebugInformation i in information.Where(i => pdb.GetGuid(i.Kind) == s_sourceLink))
            {
                using JsonDocument json = JsonDocument.Parse(pdb.GetBlobBytes(i.Value));
                foreach (JsonProperty link in json.RootElement.GetProperty("documents").EnumerateObject())
                    links.Add(link.Name, link.Value.GetString()!);
            }
            if (commit is not null) // built from a clone
            {
                (string from, string to) = Assert.Single(links);
                Assert.Equal("/_/*", from);
                Assert.StartsWith("https://", to);
                Assert.EndsWith($"/{commit}/*", to);
            }
            int linked = 0;
            foreach (DocumentHandle handle in pdb.Documents)
            {
                string name = pdb.GetString(pdb.GetDocument(handle).Name);
                Assert.StartsWith("/_", name);
                if (embedded.Contains(handle)) continue;
                ++linked;
                Assert.Contains(links.Keys, key => name.StartsWith(key.TrimEnd('*'), StringComparison.Ordinal));
                string source = name.Replace("/_", Environment.GetEnvironmentVariable("KVEVICT_TEST_SOURCE"));
                Assert.True(File.Exists(source), source);
            }
            Assert.True(commit is null ? linked == 0 : linked > 10, $"{linked} sources are linked");
        }
    }

    [Theory]
    [InlineData("win-arm64")]
    [InlineData("osx-arm64")]
    [InlineData("linux-musl-x64")]
    public void A_platform_without_a_library_is_named(string platform)
    {
        string text = NativeLoader.Explanation(platform, ["  /a: no such file", "  /b: no such file"]);
        Assert.StartsWith($"KvEvict has no native library on {platform}; its package has those for "
                          + $"{NativePlatform.Runtimes} (Linux: glibc {NativePlatform.Glibc} or later).", text);
        Assert.Contains("  /b: no such file", text);
        Assert.Contains($"Build kvevict for {platform} and set KVEVICT_LIBRARY", text);
        Assert.DoesNotContain("NuGet", text);
    }

    [Fact]
    public void This_platform_has_one()
    {
        Assert.Contains(NativeLoader.Platform(), NativePlatform.Runtimes.Split(", "));
        Assert.Contains("reference the NuGet package KvEvict", NativeLoader.Explanation(NativeLoader.Platform(), []));
    }

    private static XElement Nuspec()
    {
        using var stream = new MemoryStream(Read("nupkg", "KvEvict.nuspec"));
        return XDocument.Load(stream).Root!.Elements().Single();
    }

    private static List<string> Frameworks()
    {
        using ZipArchive package = Open("nupkg");
        return [.. package.Entries.Where(e => e.Name == "KvEvict.dll").Select(e => e.FullName.Split('/')[1])];
    }

    private static ZipArchive Open(string extension) => ZipFile.OpenRead(
        Assert.Single(Directory.GetFiles(PackageFactAttribute.Feed!, $"KvEvict.*.{extension}")));

    private static byte[] Read(string extension, string name)
    {
        using ZipArchive package = Open(extension);
        return Content(package.GetEntry(name) ?? throw new FileNotFoundException($"{extension} has no {name}"));
    }

    private static byte[] Content(ZipArchiveEntry entry)
    {
        using var content = new MemoryStream();
        using Stream stream = entry.Open();
        stream.CopyTo(content);
        return content.ToArray();
    }

    /// <summary>A test that is skipped if no package was built for it.</summary>
    private sealed class PackageFactAttribute : FactAttribute
    {
        public PackageFactAttribute()
        {
            if (string.IsNullOrEmpty(Feed)) Skip = "KVEVICT_TEST_FEED is not set";
        }

        public static string? Feed => Environment.GetEnvironmentVariable("KVEVICT_TEST_FEED");
    }
}
