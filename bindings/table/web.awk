# WebAssembly: abi.js, where the fields of structs lie, by the names they have here, and the
# constants; enums.js, the public enums; parameters.js, the properties of Policy; and for
# each what TypeScript knows of it, *.d.ts.
BEGIN {
  language = "web"; nothing = "null"; begins_small = 1
  named = "kvevict_dtype=DType kvevict_dtype_info=DTypeInfo kvevict_policy_copy=- kvevict_policy_get_number=- kvevict_policy_set_number=-"
  spelled = "ABI CPU CUDA"
  of_kind["number"] = of_kind["count"] = "number"; of_kind["seed"] = "bigint"
  of_kind["flag"] = "boolean"; of_kind["word"] = "string"
  n = split("Int8 Uint8 Int16 Uint16 Int32 Uint32 Float32 Float64 BigInt64 BigUint64", js, " ")
  split("int8_t uint8_t int16_t uint16_t int32_t uint32_t float double int64_t uint64_t", c, " ")
  for (i = 1; i <= n; i++) array_of[c[i]] = js[i] "Array"
  abi = out "/abi.js"; enums = out "/enums.js"; parameters = out "/parameters.js"
  enum_types = out "/enums.d.ts"; struct_types = out "/structs.d.ts"
  parameter_types = out "/parameters.d.ts"
  made = "// Made from the headers by bindings/table.\n"
  printf "%sexport const structs = {\n", made > abi
  printf "%s", made > enums
  printf "%s", made > enum_types
  printf "%simport type { Data, Memory } from \"./kvevict.js\";\nimport type * as enums from \"./enums.js\";\n", \
         made > struct_types
  printf "// Made from params.inc by bindings/table.\nexport const parameters = {\n" > parameters
  printf "// Made from params.inc by bindings/table.\nexport interface PolicyParameters {\n" > parameter_types
}

$1 == "constant" { constants = constants "  " substr($2, 9) ": " $3 ",\n" }

$1 == "enum" || $1 == "struct" { close_type() }
$1 == "enum" {
  open = "enum"; enum = $2
  printf "\nexport const %s = Object.freeze({\n", type_name($2) > enums
  printf "\n%sexport type %s = (typeof %s)[keyof typeof %s];\nexport declare const %s: {\n",
         comment($3, ""), type_name($2), type_name($2), type_name($2), type_name($2) > enum_types
}
$1 == "value" {
  printf "  %s: %s,\n", value_here(enum, $2), $3 > enums
  printf "%s  readonly %s: %s;\n", comment($4, "  "), value_here(enum, $2), $3 > enum_types
}

$1 == "struct" {
  open = "struct"; struct = $2
  printf "  %s: {\n    size: %s,\n    fields: {\n", $2, $3 > abi
  printf "\nexport interface %s {\n", type_name($2) > struct_types
}
$1 == "field" {
  printf "      %s: [%s, \"%s\", %s],\n", member_name($2), $3, field_type($5), $6 > abi
  if ($2 != "struct_size" && $2 !~ /^reserved/)
    printf "%s  %s?: %s;\n", $7 == "" ? "" : field_comment($7, is_flag($5, $7)), \
           member_name($2), type_here($2, $5, $6, $7) > struct_types
}
$1 == "init" { inits = inits (inits == "" ? "" : ", ") member_name($2) ": " $3 "n" }

$1 == "dtype" { blocks = blocks (blocks == "" ? "" : ", ") "[" $3 ", " $4 "]" }

$1 == "param" {
  kind_here = param_kind($3)
  printf "  %s: [\"%s\", \"%s\"],\n", member_name($2), $2, kind_here > parameters
  printf "%s  %s: %s;\n", comment($4, "  "), member_name($2), of_kind[kind_here] > parameter_types
}

END {
  close_type()
  printf "};\n\nexport const constants = Object.freeze({\n%s});\n", constants > abi
  printf "\n// For each dtype: elements that are stored together, and their bytes.\n" > abi
  printf "export const dtypeBlocks = [%s];\n", blocks > abi
  print "};" > parameters
  print "}" > parameter_types
}

function close_type() {
  if (open == "enum") { print "});" > enums; print "};" > enum_types }
  if (open == "struct") {
    printf "    },\n    init: {%s},\n  },\n", inits == "" ? "" : " " inits " " > abi
    print "}" > struct_types
    inits = ""
  }
  open = ""
}
function value_here(enum, value) { return value_name(enum, value) }
function type_name(c_name) { return given(c_name) == "" ? camel(c_name) : given(c_name) }
# The C type, but enums and aliases are what they stand for.
function field_type(c) {
  if (c ~ /\*$/) return field_type(substr(c, 1, length(c) - 1)) "*"
  if (kind[c] == "enum") return "int32_t"
  if (kind[c] == "alias") return field_type(alias[c])
  if (kind[c] == "handle") return "void"
  return kind[c] == "function" ? "void*" : c
}
# An address in a number is as good as a pointer.
function type_here(name, c, length_, doc) {
  if (is_flag(c, doc)) return "boolean"
  if (c == "kvevict_stream" || c ~ /^u?int64_t$/ && (name == "data" || name == "address_table"))
    return "Data"
  if (c == "char*" || c == "char") return "string"
  if (c ~ /\*$/) {
    c = substr(c, 1, length(c) - 1)
    if (kind[c] == "struct") return type_name(c) " | " type_name(c) "[]"
    return c in array_of ? array_of[c] " | Memory" : "Data"
  }
  if (kind[c] == "enum") return "enums." type_name(c)
  if (kind[c] == "struct") return type_name(c)
  if (kind[c] == "function" || c == "void*") return "Data"
  return c ~ /64_t$/ ? "number | bigint" : (length_ > 0 ? "number[]" : "number")
}
# In structs that the library fills, flags are the numbers that it writes.
function is_flag(c, doc) { return filled != "" && scalar_kind(c, doc) == "flag" }
function field_comment(doc, flag, of, text) {
  of = enum; enum = ""; in_options = 1
  text = comment(flag ? of_flag(doc) : doc, "  ")
  in_options = 0; enum = of
  return text
}
function make_options(struct) {} # objects are copied by the names of their fields
function comment(text, indent) {
  text = prose(text)
  if (length(text) < 85) return indent "/** " text " */\n"
  return indent "/**\n" wrapped(text, indent " * ") indent " */\n"
}
