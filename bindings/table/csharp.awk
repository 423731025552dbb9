# C#: Enums.cs has the public enums; NativeStructs.cs constants and structs under their
# C names, which sequential layout lays out as C does; NativeNames.cs the names here of
# functions that messages name; PolicyParameters.cs the properties of KvPolicy; Options.cs
# those of structs that callers fill, Fill(), which writes them, and Of(), which reads them;
# tests/ReplayFields.cs sets these properties to what a line of the transcript names.
BEGIN {
  language = "csharp"; prefix = "Kv"; nothing = "null"; counted = 1; n_names = "count"
  named = "n_kv_heads=KvHeads n_q_heads=QueryHeads n_sum_heads=SumHeads n_query_rows=QueryRows n_reference_rows=ReferenceRows " \
          "k_head_dim=KeyHeadDim v_head_dim=ValueHeadDim q_dtype=QueryType k_dtype=KeyType " \
          "v_dtype=ValueType group_elems=GroupElements row_lse=RowLse " \
          "rope_inv_freq=RopeInverseFrequencies " \
          "rope_inv_freq_len=RopeInverseFrequencies.Length " \
          "kvevict_attend_workspace=KvContext.AttendWorkspaceSize " \
          "kvevict_compact_workspace=KvContext.CompactWorkspaceSize " \
          "kvevict_reorder_workspace=KvContext.ReorderWorkspaceSize " \
          "kvevict_select_workspace=KvContext.SelectWorkspaceSize " \
          "kvevict_plan_workspace=KvPlan.WorkspaceSize " \
          "kvevict_paged_cache_bytes=KvPagedCache.BytesFor " \
          "kvevict_paged_cache_get_usage=KvPagedCache.Usage kvevict_policy_at=KvPolicy.All " \
          "kvevict_policy_copy=- " \
          "kvevict_policy_format=KvPolicy.ToString kvevict_policy_get=- " \
          "kvevict_policy_get_number=- kvevict_policy_need=KvPolicy.NeedOf kvevict_policy_set=- " \
          "kvevict_policy_set_number=- " \
          "kvevict_device_check=KvEvictLibrary.CheckDevice"
  spelled = "DType"
  split("bool char double float int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t " \
        "uint64_t size_t uintptr_t void", c, " ")
  split("bool byte double float sbyte byte short ushort int uint long ulong nuint nuint void",
        cs, " ")
  for (i in c) number[c[i]] = cs[i]
  n = split("abstract as base bool byte catch checked class decimal delegate event explicit " \
            "false finally fixed foreach implicit in interface internal is lock namespace " \
            "new null object operator out override params private protected public readonly " \
            "ref sbyte sealed stackalloc string this throw true try typeof uint ulong " \
            "unchecked unsafe ushort using virtual", words, " ")
  for (i = 1; i <= n; i++) reserved[words[i]]
  of_kind["number"] = "double"; of_kind["count"] = "int"; of_kind["seed"] = "ulong"
  of_kind["flag"] = "bool"; of_kind["word"] = "string"
  of_scalar["count"] = of_scalar["int"] = "int"; of_scalar["size"] = of_scalar["long"] = "long"
  of_scalar["flag"] = "bool"; of_scalar["float"] = "float"; of_scalar["double"] = "double"
  read_by["count"] = read_by["int"] = read_by["enum"] = "Int"; read_by["size"] = read_by["long"] = "Long"
  read_by["flag"] = "Flag"; read_by["float"] = "Float"; read_by["double"] = "Double"
  enums = out "/Enums.cs"; structs = out "/NativeStructs.cs"
  made_first = "// Made from the headers by bindings/table.\n"
  made = made_first "namespace KvEvict;\n"
  printf "%s", made > enums
  printf "%s", made > structs
}

$1 == "param" {
  kind_here = param_kind($3)
  properties = properties "\n" summary($4, "    ") "    public " of_kind[kind_here] " " \
               member_name($2) "\n    {\n        get => Read" camel(kind_here) "(\"" $2 \
               "\");\n        init => Set(\"" $2 "\", value);\n    }\n"
}

$1 == "constant" {
  constants = constants (($4 == "") ? "" : wrapped($4, "    // ")) \
              "    internal const " ($3 < 0 ? "int " : "uint ") $2 " = " $3 ";\n"
}

$1 == "enum" || $1 == "struct" { close_type() }
$1 == "enum" {
  open_file = enums; enum = $2
  printf "\n%spublic enum %s\n{\n", summary($3, ""), type_name($2) > enums
}
$1 == "value" {
  printf "%s    %s = %s,\n", summary($4, "    "), value_here(enum, $2), $3 > enums
}

$1 == "call" && call_name($2) != "-" {
  names = names "        \"" $2 "\" => \"" call_name($2) "\",\n"
}

$1 == "struct" {
  open_file = structs; struct = $2
  body = body "\ninternal unsafe struct " struct "\n{\n"
}
$1 == "field" {
  name = $2 in reserved ? "@" $2 : $2; cs_type = type_of_field[$2] = type($5)
  if ($6 == 0) body = body "    public " cs_type " " name ";\n"
  else if ($5 in number) body = body "    public fixed " cs_type " " name "[" $6 "];\n"
  else {
    # C# has fixed arrays of numbers only, and no arrays of pointers.
    array = struct "_" $2; if (cs_type ~ /\*/) cs_type = "nint"
    body = body "    public " array " " name ";\n"
    arrays = arrays "\n[System.Runtime.CompilerServices.InlineArray(" $6 ")]\n" \
             "internal unsafe struct " array "\n{\n    private " cs_type " _first;\n}\n"
  }
}

# The values of an INIT macro. They are unsigned: none is negative.
$1 == "init" {
  inits = inits (inits == "" ? "" : ", ") $2 " = (" type_of_field[$2] ")" $3
}

END {
  close_type()
  printf "\ninternal static class NativeConstants\n{\n%s}\n%s%s", constants, body,
         arrays > structs
  printf "%s\ninternal static class NativeNames\n{\n    internal static string Of(string name) => " \
         "name switch\n    {\n%s        _ => name,\n    };\n}\n", made, names > (out "/NativeNames.cs")
  printf "// Made from params.inc by bindings/table.\nnamespace KvEvict;\n\n" \
         "public sealed partial record KvPolicy\n{\n%s}\n",
         substr(properties, 2) > (out "/PolicyParameters.cs")
  printf "%susing System.Runtime.InteropServices;\n\nnamespace KvEvict;\n%s", made_first, \
         filling > (out "/Options.cs")
  printf "%snamespace KvEvict.Tests;\n\ninternal static class ReplayFields\n{\n%s}\n", made_first, \
         substr(replays, 2) > (out "/tests/ReplayFields.cs")
}

function make_options(struct, i, of, in_struct, set, typed, properties, writes, reads, named, value) {
  of = (struct, "csharp") in option ? option[struct, "csharp"] : "record-struct"
  in_struct = of ~ /struct/
  # What a call may find changed is set, what belongs to a value is given once.
  set = sub(/^mutable-/, "", of) || of ~ /^ref-/ ? "set" : "init"
  if (!sub(/^ref-/, "ref partial ", of)) of = "partial " of
  gsub(/-/, " ", of)
  for (i = 1; i <= n_fields; i++) {
    typed = field_kind[i] == "enum" ? type_name(field_c_type[i]) \
            : of_scalar[field_by[i] == "int" ? "int" : field_kind[i]]
    enum = field_c_type[i]
    if (field_by[i] != "given")
      properties = properties summary(field_doc[i], "    ") "    public " typed " " \
                   field_here[i] " { get; " set "; }" initial(i) "\n\n"
    value = "l." read_by[field_by[i] == "int" ? "int" : field_kind[i]] "(\"" field_name[i] "\")"
    if (field_by[i] != "given")
      named = named "        " (of ~ /class/ ? "o." : "") field_here[i] " = l.Has(\"" field_name[i] "\") ? " \
              (field_kind[i] == "enum" ? "(" typed ")" : "") value " : o." field_here[i] \
              (of ~ /class/ ? ";\n" : ",\n")
    writes = writes "        native->" (field_name[i] in reserved ? "@" : "") field_name[i] \
             " = " written(i) ";\n"
    reads = reads "        " field_here[i] " = " read(i, typed) ",\n"
  }
  filling = filling "\n" (in_struct ? "[StructLayout(LayoutKind.Auto)]\n" : "") of " " \
            options_name(struct) "\n{\n" properties "    internal " \
            (in_struct ? "readonly " : "") "unsafe void Fill(" struct "* native)\n    {\n" \
            "        *native = " (sized ? struct ".Init" : "default") ";\n" writes "    }\n"
  if ((struct, "read") in option)
    filling = filling "\n    internal static unsafe " options_name(struct) " Of(" struct \
              "* native) => new()\n    {\n" reads "    };\n"
  filling = filling "}\n"
  if (named == "" || (of ~ /class/ && set == "init")) return
  replays = replays "\n    internal static " options_name(struct) " Apply(this Line l, " \
            options_name(struct) " o)" \
            (of ~ /class/ ? "\n    {\n" named "        return o;\n    }\n" : " => o with\n    {\n" named "    };\n")
}

# A property as C has it, and the other way round.
function written(i) {
  if (field_kind[i] == "count" || field_kind[i] == "size")
    return "Check.Count(" field_here[i] ", nameof(" field_here[i] "))"
  return field_here[i] (field_kind[i] == "flag" ? " ? 1u : 0u" : "")
}
function read(i, typed, field) {
  field = "native->" field_name[i]
  if (field_kind[i] == "flag") return field " != 0"
  if (typed == "int" && field_kind[i] != "int") return "Check.ToInt(" field ")"
  return (field_kind[i] == "size" ? "(long)" : "") field
}
# What INIT sets a field to.
function initial(i, value) {
  value = field_init[i]
  if (value == "") return ""
  if (field_kind[i] == "enum")
    value = of_enum(field_c_type[i]) value_here(field_c_type[i], value_of[field_c_type[i], value])
  return " = " value ";"
}
function close_type() {
  if (open_file == enums) print "}" > enums
  if (open_file == structs) {
    if (inits != "") body = body "\n    internal static " struct " Init => new() { " inits " };\n"
    body = body "}\n"; inits = ""
  }
  open_file = ""
}
function value_here(enum, value) { return camel(value_name(enum, value)) }
function type_name(c_name) {
  if (kind[c_name] == "struct") return c_name
  return kind[c_name] == "handle" ? camel(c_name) "Handle" : prefix camel(c_name)
}
function type(c, parts, n, i, list) {
  if (c ~ /\*$/) return type(substr(c, 1, length(c) - 1)) "*"
  if (kind[c] == "handle") return "void" # only its address is used
  if (kind[c] == "alias") return type(alias[c])
  if (kind[c] == "enum" || kind[c] == "struct") return type_name(c)
  if (kind[c] == "function") {
    n = split(signature[c], parts, "\t")
    for (i = 4; i <= n; i++) list = list type(parts[i]) ", "
    return "delegate* unmanaged[Cdecl]<" list type(parts[3]) ">"
  }
  if (!(c in number)) fail("no C# type for " c)
  return number[c]
}
function summary(text, indent) {
  text = prose(text)
  gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text); gsub(/>/, "\\&gt;", text)
  return wrapped("<summary>" text "</summary>", indent "/// ")
}
