# Java: a file per public enum; Abi.java has the constants, and the sizes and
# offsets of the structs; Names.java the names here of functions that messages name;
# PolicyParameters.java the getters of Policy and the setters of its builder; a file
# *Fields.java per struct that callers fill, which setters of its properties are in, and fill(),
# which writes them, and take(), which reads them; `sources` lists these files;
# tests/dev/kvevict/ReplayFields.java sets these properties to what a line of the transcript names.
BEGIN {
  language = "java"; nothing = "null"; begins_small = 1; counted = 1; n_names = "count"
  named = "n_kv_heads=kvHeads n_q_heads=queryHeads n_sum_heads=sumHeads n_query_rows=queryRows n_reference_rows=referenceRows " \
          "k_head_dim=keyHeadDim v_head_dim=valueHeadDim q_dtype=queryType k_dtype=keyType " \
          "v_dtype=valueType group_elems=groupElements has_destinations=destinations dtype=dtype " \
          "rope_inv_freq=Geometry.withRope KVEVICT_POSITION_NEXT=Sequence.POSITION_NEXT " \
          "rope_inv_freq_len=inverseFrequencies.length kvevict_paged_cache_bytes=- " \
          "kvevict_paged_cache_get_usage=PagedCache.usage kvevict_policy_at=- " \
          "kvevict_policy_copy=- " \
          "kvevict_policy_format=Policy.toString kvevict_policy_get=- " \
          "kvevict_policy_get_number=- kvevict_policy_need=Policy.needOf kvevict_policy_set=- " \
          "kvevict_policy_set_number=- kvevict_device_check=KvEvict.checkDevice"
  spelled = "DType"
  of_kind["number"] = "double"; of_kind["count"] = "int"; of_kind["seed"] = "long"
  of_kind["flag"] = "boolean"; of_kind["word"] = "String"
  of_scalar["count"] = of_scalar["int"] = "int"; of_scalar["size"] = of_scalar["long"] = "long"
  of_scalar["flag"] = "boolean"; of_scalar["float"] = "float"; of_scalar["double"] = "double"
  accessor["count"] = accessor["int"] = "Int"; accessor["size"] = accessor["long"] = "Long"
  accessor["flag"] = "Flag"; accessor["float"] = "Float"; accessor["double"] = "Double"
  accessor["enum"] = "Enum"
  read_by["count"] = read_by["int"] = "count"; read_by["size"] = read_by["long"] = "number"
  read_by["flag"] = "flag"; read_by["float"] = "single"; read_by["double"] = "real"
  given_as["number"] = given_as["count"] = given_as["word"] = "value"
  given_as["seed"] = "Long.toUnsignedString(value)"; given_as["flag"] = "value ? 1 : 0"
  abi = out "/Abi.java"
  made = "// Made from the headers by bindings/table.\npackage dev.kvevict;\n\n"
  printf "%s/** Numbers of the headers. A struct has those of its fields: where they begin. */\n" \
         "final class Abi {\n  private Abi() {}\n", made > abi
  print abi > (out "/sources")
}

$1 != "field" && $1 != "init" { close_struct() }

# An unsigned number above Java's largest is the negative one with the same bits.
$1 == "constant" {
  printf "\n%s  static final int %s = %s;\n", $4 == "" ? "" : comment($4, "  "),
         substr($2, 9), int_of($3) > abi
}

$1 == "param" {
  kind_here = param_kind($3)
  getters = getters "\n" comment($4, "  ", "@return the value") "  public " of_kind[kind_here] " " \
            member_name($2) "() {\n    return read" camel(kind_here) "(\"" $2 "\");\n  }\n"
  setters = setters "\n" comment("Sets {@link Policy#" member_name($2) "()}.", "    ", \
                                    "@param value the value\n@return this") \
            "    public Policy.Builder " member_name($2) "(" of_kind[kind_here] " value) {\n" \
            "      return set(\"" $2 "\", " given_as[kind_here] ");\n    }\n"
}

$1 != "value" { close_enum() }
$1 == "enum" {
  enum = $2; name = type_name($2); file = out "/" name ".java"
  print file > (out "/sources")
  printf "%s%spublic enum %s implements CEnum {\n", made, comment($3, ""), name > file
}
$1 == "value" {
  printf "%s%s  %s(%s)", values++ ? ",\n" : "", comment($4, "  "),
         value_here(enum, $2), $3 > file
}

$1 == "call" && call_name($2) != "-" {
  names = names "      case \"" $2 "\" -> \"" call_name($2) "\";\n"
}

$1 == "struct" {
  struct = $2
  printf "\n  static final class %s {\n    static final int SIZEOF = %s;\n", type_name($2),
         $3 > abi
}
$1 == "field" { printf "    static final int %s = %s;\n", toupper($2), $3 > abi }
# The fields that an INIT macro sets, each of 4 bytes, and their values.
$1 == "init" { inits = inits (inits == "" ? "" : ", ") toupper($2) ", " int_of($3) }

END {
  close_enum(); close_struct()
  print "}" > abi
  printf "%sfinal class Names {\n  private Names() {}\n\n  /** What Java calls a function of C. */\n" \
         "  static String of(String name) {\n    return switch (name) {\n%s      default -> name;\n" \
         "    };\n  }\n}\n", made, names > (out "/Names.java")
  print (out "/Names.java") > (out "/sources")
  printf "// Made from params.inc by bindings/table.\npackage dev.kvevict;\n\n" \
         "abstract class PolicyParameters {\n  abstract double readNumber(String key);\n\n" \
         "  abstract int readCount(String key);\n\n  abstract boolean readFlag(String key);\n\n" \
         "  abstract long readSeed(String key);\n\n  abstract String readWord(String key);\n" \
         "%s\n  abstract static class Setters {\n" \
         "    abstract Policy.Builder set(String key, double value);\n\n" \
         "    abstract Policy.Builder set(String key, String value);\n%s  }\n}\n", getters,
         setters > (out "/PolicyParameters.java")
  print (out "/PolicyParameters.java") > (out "/sources")
  printf "%simport dev.kvevict.Transcript.Line;\n\nfinal class ReplayFields {\n  private ReplayFields() {}\n%s}\n", made, \
         replays > (out "/tests/dev/kvevict/ReplayFields.java")
}

function make_options(struct, i, of, name, builds, typed, fields, setters, puts, takes, at, file, named) {
  if (option[struct, "java"] == "none") return
  name = options_name(struct) "Fields"; of = "Abi." type_name(struct) "."
  builds = option[struct, "java"] == "build"
  for (i = 1; i <= n_fields; i++) {
    typed = field_kind[i] == "enum" ? type_name(field_c_type[i]) \
            : of_scalar[field_by[i] == "int" ? "count" : field_kind[i]]
    at = "(at + " of toupper(field_name[i])
    fields = fields "  " typed " " field_here[i] initial(i) ";\n"
    puts = puts "\n        .put" accessor[field_kind[i]] at ", " field_here[i] ")"
    takes = takes "    next." field_here[i] " = " \
            (typed == "int" && field_kind[i] == "size" ? "(int) " : "") "in." \
            tolower(substr(accessor[field_kind[i]], 1, 1)) substr(accessor[field_kind[i]], 2) \
            "At" at (field_kind[i] == "enum" ? ", " typed ".class" : "") ");\n"
    enum = field_c_type[i]
    if (field_by[i] != "given") {
      setters = setters "\n" setter(i, typed, builds)
      named = named "    o = l.has(\"" field_name[i] "\") ? o." setter_name(i, builds) "(" \
              (field_kind[i] == "enum" ? "l.constant(" typed ".class, " \
                                       : "l." read_by[typed == "int" ? "int" : field_kind[i]] "(") \
              "\"" field_name[i] "\")) : o;\n"
    }
  }
  file = out "/" name ".java"
  print file > (out "/sources")
  printf "// Made from the headers by bindings/table.\npackage dev.kvevict;\n\n%s" \
         "abstract class %s<T extends %s<T>> extends Fields<T> {\n%s%s\n" \
         "  Struct fill(Struct out, int at) {\n    return out%s%s;\n  }\n", \
         setters ~ /Objects\./ ? "import java.util.Objects;\n\n" : "", name, name, fields, \
         setters, sized ? ".putInt(at + " of "STRUCT_SIZE, " of "SIZEOF)" : "", puts > file
  if ((struct, "read") in option)
    printf "\n  T take(Struct in, int at) {\n    T next = next();\n%s    return next;\n  }\n", \
           takes > file
  print "}" > file
  close(file)
  if (named != "")
    replays = replays "\n  static <T extends " name "<T>> T apply(Line l, T o) {\n" named "    return o;\n  }\n"
}

function setter_name(i, builds) {
  return builds ? field_here[i] : "with" toupper(substr(field_here[i], 1, 1)) substr(field_here[i], 2)
}

function setter(i, typed, builds, here, value) {
  here = value = field_here[i]
  if (field_kind[i] == "count" || field_kind[i] == "size")
    value = "Memory.count(" here ", \"" here "\")"
  if (field_kind[i] == "enum") value = "Objects.requireNonNull(" here ", \"" here "\")"
  return comment(field_doc[i], "  ", "@param " here " the value\n@return " \
                                     (builds ? "this" : "a copy with it")) \
         "  public T " setter_name(i, builds) "(" typed " " here ") {\n    T next = next();\n    next." here " = " value \
         ";\n    return next;\n  }\n"
}

# What a field is unless it is set.
function initial(i, value) {
  value = field_init[i] == "" ? 0 : field_init[i]
  if (field_kind[i] == "enum")
    return " = " of_enum(field_c_type[i]) \
           value_here(field_c_type[i], value_of[field_c_type[i], value])
  return value ? " = " int_of(value) : ""
}

function close_enum() {
  if (enum == "") return
  printf ";\n\n  private final int value;\n\n  %s(int value) {\n    this.value = value;\n" \
         "  }\n\n  @Override\n  public int value() {\n    return value;\n  }\n}\n",
         name > file
  close(file); enum = ""; values = 0
}
function close_struct() {
  if (inits != "") print "    static final int[] INIT = {" inits "};" > abi
  if (struct != "") print "  }" > abi
  struct = inits = ""
}
function int_of(value) { return value > 2147483647 ? "(int) " value "L" : value }
function value_here(enum, value) { return value_name(enum, value) }
function type_name(c_name) { return camel(c_name) }
# The tags, if any, are the lines after the text.
function comment(text, indent, tags) {
  text = prose(text)
  gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text); gsub(/>/, "\\&gt;", text)
  gsub(/@/, "\\&#64;", text)
  if (tags == "" && length(text) < 85) return indent "/** " text " */\n"
  gsub(/\n/, "\n" indent " * ", tags)
  return indent "/**\n" wrapped(text, indent " * ") \
         (tags == "" ? "" : indent " *\n" indent " * " tags "\n") indent " */\n"
}
