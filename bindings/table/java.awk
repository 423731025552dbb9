# Java: a file per public enum; Abi.java, the constants, and the sizes and offsets of the
# structs; Names.java, what functions that messages name are called here; `sources`, which
# lists these files.
BEGIN {
  nothing = "null"; begins_small = 1
  named = "n_sink=sink n_recent=recent n_kv_heads=kvHeads n_q_heads=queryHeads " \
          "k_head_dim=keyHeadDim rope_inv_freq=Geometry.withRope " \
          "rope_inv_freq_len=inverseFrequencies.length kvevict_paged_cache_bytes=- " \
          "kvevict_paged_cache_get_usage=PagedCache.usage kvevict_policy_at=- " \
          "kvevict_policy_need=Policy.needOf kvevict_device_check=KvEvict.checkDevice"
  spelled = "DType"
  abi = out "/Abi.java"
  made = "// Made from kvevict.h by bindings/table.\npackage dev.kvevict;\n\n"
  printf "%s/** Numbers of kvevict.h. A struct has those of its fields: where they begin. */\n" \
         "final class Abi {\n  private Abi() {}\n", made > abi
  print abi > (out "/sources")
}

# An unsigned number above Java's is the negative one of the same bits.
$1 == "constant" {
  printf "\n%s  static final int %s = %s;\n", $4 == "" ? "" : comment($4, "  "),
         substr($2, 9), ($3 > 2147483647 ? "(int) " $3 "L" : $3) > abi
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

$1 != "field" { close_struct() }
$1 == "struct" {
  struct = $2
  printf "\n  static final class %s {\n    static final int SIZEOF = %s;\n", type_name($2),
         $3 > abi
}
$1 == "field" { printf "    static final int %s = %s;\n", toupper($2), $3 > abi }

END {
  close_enum(); close_struct()
  print "}" > abi
  printf "%sfinal class Names {\n  private Names() {}\n\n  /** What Java calls a function of C. */\n" \
         "  static String of(String name) {\n    return switch (name) {\n%s      default -> name;\n" \
         "    };\n  }\n}\n", made, names > (out "/Names.java")
  print (out "/Names.java") > (out "/sources")
}

function close_enum() {
  if (enum == "") return
  printf ";\n\n  private final int value;\n\n  %s(int value) {\n    this.value = value;\n" \
         "  }\n\n  @Override\n  public int value() {\n    return value;\n  }\n}\n",
         name > file
  close(file); enum = ""; values = 0
}
function close_struct() {
  if (struct != "") print "  }" > abi
  struct = ""
}
function value_here(enum, value) { return value_name(enum, value) }
function type_name(c_name) { return camel(c_name) }
function comment(text, indent, lines) {
  text = prose(text)
  gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text); gsub(/>/, "\\&gt;", text)
  gsub(/@/, "\\&#64;", text)
  if (length(text) < 85) return indent "/** " text " */\n"
  return indent "/**\n" wrapped(text, indent " * ") indent " */\n"
}
