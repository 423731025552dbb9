using System.Reflection;
using System.Reflection.Emit;
using System.Reflection.Metadata;
using System.Reflection.PortableExecutable;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Text.RegularExpressions;
using System.Xml.Linq;
using Xunit;

namespace KvEvict.Tests;

/// <summary>The binding has everything that the header has, with the header's numbers.</summary>
public class SurfaceTests
{
    private static readonly Assembly s_library = typeof(KvContext).Assembly;
    private static readonly Type s_imports = s_library.GetType("KvEvict.NativePINVOKE", throwOnError: true)!;
    private static readonly Type s_wrappers = s_library.GetType("KvEvict.Native", throwOnError: true)!;
    private const BindingFlags Any = BindingFlags.Public | BindingFlags.NonPublic | BindingFlags.Static
        | BindingFlags.Instance | BindingFlags.DeclaredOnly;

    [Fact]
    public void Every_exported_function_is_imported()
    {
        Assert.Equal(Exported(), s_imports.GetMethods(Any).Select(m => m.Name).Order(StringComparer.Ordinal));
    }

    [Fact]
    public void Every_exported_function_is_used_by_the_layer_or_listed_with_a_reason()
    {
        HashSet<string> used = [];
        foreach (Type type in s_library.GetTypes().Where(t => t != s_imports && t != s_wrappers))
        {
            foreach (MethodBase method in type.GetMethods(Any).Cast<MethodBase>().Concat(type.GetConstructors(Any)))
                used.UnionWith(NativeCalls(method));
        }
        Assert.Equal(Exported().Except(NotWrapped()), used.Order(StringComparer.Ordinal));
    }

    /// <summary>
    /// Every public member is called by the replayer of the transcript or by a test of its own.
    /// <see cref="PolicyTests"/> sets the properties of policies by their names.
    /// </summary>
    [Fact]
    public void Every_public_member_is_reached()
    {
        HashSet<MemberInfo> called = [];
        foreach (Type type in typeof(SurfaceTests).Assembly.GetTypes())
        {
            foreach (MethodBase method in type.GetMethods(Any).Cast<MethodBase>().Concat(type.GetConstructors(Any)))
                called.UnionWith(Calls(method));
        }
        HashSet<string> parameters = [.. KvPolicy.ParametersOf().Select(row => row.Key.Replace("_", ""))];
        List<string> missing = [];
        int reached = 0;
        foreach (Type type in s_library.GetExportedTypes().Where(type => !type.IsEnum && !type.IsSubclassOf(typeof(Delegate))))
        {
            const BindingFlags own = BindingFlags.Public | BindingFlags.Static | BindingFlags.Instance
                | BindingFlags.DeclaredOnly;
            // What the compiler makes of records: properties of their constructors, and comparisons.
            HashSet<string> made = new(type.GetConstructors().SelectMany(c => c.GetParameters()).Select(p => p.Name!),
                                       StringComparer.OrdinalIgnoreCase);
            foreach (PropertyInfo property in type.GetProperties(own))
            {
                if (made.Contains(property.Name)
                    || type == typeof(KvPolicy) && parameters.Contains(property.Name.ToLowerInvariant())) continue;
                ++reached;
                if (!property.GetAccessors().Any(IsCalled)) missing.Add($"{type.Name}.{property.Name}");
            }
            foreach (MethodInfo method in type.GetMethods(own))
            {
                if (method.IsSpecialName && method.Name != "op_Implicit"
                    || method.IsDefined(typeof(CompilerGeneratedAttribute))
                    || method.Name is "Equals" or "GetHashCode" or "ToString" or "Deconstruct") continue;
                ++reached;
                if (!IsCalled(method)) missing.Add($"{type.Name}: {method}");
            }
        }
        Assert.True(missing.Count == 0, string.Join(", ", missing));
        Assert.InRange(reached, 150, 10000);

        bool IsCalled(MethodBase method) => called.Any(
            other => other.MetadataToken == method.MetadataToken && other.Module == method.Module);
    }

    // The methods of the library that a method's code calls, makes objects by or refers to.
    private static IEnumerable<MemberInfo> Calls(MethodBase method)
    {
        byte[] code = method.GetMethodBody()?.GetILAsByteArray() ?? [];
        for (int i = 0; i + 5 <= code.Length; ++i)
        {
            bool refers = code[i] == 0x06 && i > 0 && code[i - 1] == 0xFE; // ldftn
            if (!refers && code[i] is not (0x28 or 0x6F or 0x73)) continue; // call, callvirt, newobj
            MethodBase? called = null;
            try
            {
                called = method.Module.ResolveMethod(BitConverter.ToInt32(code, i + 1),
                    method.DeclaringType!.GetGenericArguments(),
                    method.IsGenericMethod ? method.GetGenericArguments() : null);
            }
            catch (Exception e) when (e is ArgumentException or BadImageFormatException)
            {
                // It is no instruction, but an operand that looks like one.
            }
            if (called?.Module.Assembly == s_library) yield return called;
        }
    }

    [Fact]
    public void Every_struct_has_the_librarys_layout()
    {
        int fields = 0;
        HashSet<string> structs = [];
        foreach (string[] row in Lines("kvevict.layout").Select(line => line.Split(' ')))
        {
            if (!row[0].StartsWith("kvevict_", StringComparison.Ordinal)) continue;
            string[] path = row[0].Split('.');
            Type type = s_library.GetType($"KvEvict.{path[0]}", throwOnError: true)!;
            structs.Add(path[0]);
            if (path.Length == 1)
            {
                Assert.Equal((row[0], int.Parse(row[1])), (row[0], Marshal.SizeOf(type)));
                continue;
            }
            ++fields;
            Assert.NotNull(type.GetField(path[1]));
            Assert.Equal((row[0], int.Parse(row[1])), (row[0], (int)Marshal.OffsetOf(type, path[1])));
        }
        Assert.Equal(structs.Count, s_library.GetTypes().Count(t => t.Name.StartsWith("kvevict_")));
        Assert.Equal(fields, s_library.GetTypes().Where(t => t.Name.StartsWith("kvevict_"))
                                      .Sum(t => t.GetFields().Length));
    }

    [Fact]
    public void Every_import_is_blittable()
    {
        Assert.NotNull(s_library.GetCustomAttribute<DisableRuntimeMarshallingAttribute>());
        foreach (MethodInfo import in s_imports.GetMethods(Any))
        {
            foreach (Type type in import.GetParameters().Select(p => p.ParameterType).Append(import.ReturnType))
                Assert.True(type.IsPointer || type.IsPrimitive || type.IsEnum || type == typeof(void), $"{import}");
        }
    }

    [Fact]
    public void Versions_are_the_headers()
    {
        string Number(string name) => Regex.Match(Header(), $@"#define KVEVICT_{name} (\d+)").Groups[1].Value;
        string version = $"{Number("VERSION_MAJOR")}.{Number("VERSION_MINOR")}.{Number("VERSION_PATCH")}";
        Assert.Equal(version, KvEvictLibrary.Version);
        Assert.Equal(int.Parse(Number("ABI_VERSION")), KvEvictLibrary.AbiVersion);
        Assert.Equal(version, s_library.GetName().Version!.ToString(3));
    }

    [Fact]
    public void No_type_has_a_name_of_the_frameworks()
    {
        HashSet<string> taken = [];
        string shared = Path.Combine(RuntimeEnvironment.GetRuntimeDirectory(), "..", "..");
        foreach (string file in Directory.GetFiles(shared, "*.dll", SearchOption.AllDirectories))
            taken.UnionWith(PublicTypes(file));
        Assert.Superset(new HashSet<string> { "Plane", "Parallel", "Half" }, taken);
        Assert.All(s_library.GetExportedTypes(), type => Assert.DoesNotContain(type.Name, taken));
        Assert.All(s_library.GetExportedTypes(), type => Assert.StartsWith("Kv", type.Name));
    }

    [Fact]
    public void Functions_have_names_of_methods()
    {
        Assert.All(Exported().Where(name => NativeNames.Of(name) != name), name =>
        {
            string[] parts = NativeNames.Of(name).Split('.');
            Assert.NotEmpty(s_library.GetType($"KvEvict.{parts[0]}", throwOnError: true)!.GetMember(parts[1]));
        });
        Assert.InRange(Exported().Count(name => NativeNames.Of(name) != name), 50, 1000);
    }

    [Fact]
    public void Only_what_is_public_is_documented()
    {
        string file = Path.ChangeExtension(s_library.Location, "xml");
        HashSet<string> documented = [.. XDocument.Load(file).Descendants("member")
            .Select(member => member.Attribute("name")!.Value)];
        foreach (string name in documented)
        {
            // "M:KvEvict.KvView.Validate(System.Int32)"
            string path = Regex.Replace(name[2..], @"[(~].*", "").Replace("``0", "");
            Type? type = s_library.GetType(path);
            int dot = path.LastIndexOf('.');
            MemberInfo[] members = type is not null ? [type]
                : s_library.GetType(path[..dot])!.GetMember(path[(dot + 1)..].Replace('#', '.'), Any);
            Assert.True(members.Any(IsVisible), $"{name} is internal");
        }

        static bool IsVisible(MemberInfo member) => member switch
        {
            Type type => type.IsVisible,
            _ when !member.DeclaringType!.IsVisible => false,
            MethodBase method => method.IsPublic || method.IsFamily,
            FieldInfo field => field.IsPublic,
            PropertyInfo property => property.GetAccessors().Length > 0,
            _ => false,
        };
    }

    private static IEnumerable<string> PublicTypes(string file)
    {
        using var image = new PEReader(File.OpenRead(file));
        if (!image.HasMetadata) return [];
        MetadataReader metadata = image.GetMetadataReader();
        return metadata.TypeDefinitions.Select(metadata.GetTypeDefinition)
                       .Where(type => (type.Attributes & TypeAttributes.VisibilityMask) == TypeAttributes.Public)
                       .Select(type => metadata.GetString(type.Name)).ToList();
    }

    private static IEnumerable<string> Exported() =>
        Lines("kvevict.symbols").Select(line => line.Split('@')[0]).Order(StringComparer.Ordinal);

    private static IEnumerable<string> NotWrapped() =>
        Lines("not_wrapped.txt").Where(line => !line.StartsWith('#')).Select(line => line.Split(' ', 3))
                                .Where(row => row[0] == "csharp" && row[2].Length > 0).Select(row => row[1]);

    private static string[] Lines(string file) =>
        File.ReadAllLines(Path.Combine(AppContext.BaseDirectory, "abi", file));

    private static string Header() =>
        Regex.Replace(string.Join('\n', Directory.GetFiles(Path.Combine(AppContext.BaseDirectory, "abi"), "*.h").SelectMany(File.ReadAllLines)),
                      @"/\*.*?\*/", "", RegexOptions.Singleline);

    // The functions of Native and NativePINVOKE that a method's code calls.
    private static IEnumerable<string> NativeCalls(MethodBase method)
    {
        byte[] code = method.GetMethodBody()?.GetILAsByteArray() ?? [];
        for (int i = 0; i + 5 <= code.Length; ++i)
        {
            if (code[i] != OpCodes.Call.Value || code[i + 4] is not (0x06 or 0x0A)) continue; // a method's token
            MethodBase? called = null;
            try
            {
                called = method.Module.ResolveMethod(BitConverter.ToInt32(code, i + 1),
                    method.DeclaringType!.GetGenericArguments(),
                    method.IsGenericMethod ? method.GetGenericArguments() : null);
            }
            catch (ArgumentException)
            {
                // It is no instruction, but an operand that looks like one.
            }
            if (called?.DeclaringType == s_imports || called?.DeclaringType == s_wrappers) yield return called.Name;
        }
    }
}
