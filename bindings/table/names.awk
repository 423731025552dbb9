# The tables of all languages have this in common. Each is made by
#
#   awk -v out=FOLDER -f names.awk -f LANGUAGE.awk TABLE
#
# from what pkg/abi/table.sh prints, a row `call name` for each function, and what rows.c
# prints. LANGUAGE.awk has the functions type_name(c_name) and value_here(enum, value).
# `spelled` has the words that are not written Likethis; a dtype's words with a digit, as FP8,
# are not either. `named` has names that do not follow from the C name: c=here ..., where "-"
# is none, and `nothing` what NULL is. With `counted` names lose the n_ of a number, for which
# they end in `n_names`, and the unit of a stride. FOLDER also gets kvevict_types.i, SWIG's lists
# of the header's types and their names here.
#
# For each struct of options.txt make_options(struct) is called, when its `n_fields` scalars are
# known: field_name[i] is C's name, field_here[i] the name here, and field_c_type[i],
# field_kind[i] (see scalar_kind), field_doc[i], field_init[i] (what INIT sets, "" for 0) and
# field_by[i] (a word of options.txt, or "") say the rest. `sized` says whether the struct begins
# with its size.
BEGIN {
  FS = "\t"; read_options("bindings/table/options.txt")
  # Documentation also names what comes later.
  while ((getline row < ARGV[1]) > 0) {
    split(row, cell, "\t")
    if (cell[1] ~ /^(enum|struct|handle|alias|function)$/) kind[cell[2]] = cell[1]
    if (cell[1] == "enum") enum_of_row = cell[2]
    if (cell[1] == "struct") struct_of_row = cell[2]
    if (cell[1] == "field") has_field[struct_of_row, cell[2]]
    if (cell[1] == "param") parameter[cell[2]]
    if (cell[1] == "dtype") {
      n = split(toupper(cell[5]), of_dtype, "_")
      for (i = 1; i <= n; i++) if (of_dtype[i] ~ /[0-9]/) dtype_words = dtype_words " " of_dtype[i]
    }
    if (cell[1] == "value") {
      enum_of[cell[2]] = enum_of_row; value_of[enum_of_row, cell[3]] = cell[2]
    }
  }
  close(ARGV[1])
}
$1 != "field" && $1 != "init" { close_options() }
$1 == "struct" && $2 in options { filled = $2 }
$1 == "field" && filled != "" && $2 == "struct_size" { sized = 1 }
$1 == "field" && filled != "" && $2 !~ /^(struct_size|reserved)$/ && !$6 {
  if (scalar_kind($5, $7) != "") read_field()
}
$1 == "init" && ($2 in field_at) { field_init[field_at[$2]] = $3 }
$1 == "enum" { kind[$2] = "enum"; for_each("ENUM", $2) }
$1 == "handle" { kind[$2] = "handle"; for_each("HANDLE", $2) }
$1 == "struct" { kind[$2] = "struct"; for_each("STRUCT", $2) }
$1 == "alias" { kind[$2] = "alias"; alias[$2] = $3 }
$1 == "function" { kind[$2] = "function"; signature[$2] = $0 }
END {
  if (failed) exit 1
  close_options()
  for (list in lists)
    printf "%%define KV_FOR_EACH_%s(APPLY)\n%s%%enddef\n", list,
           lists[list] > (out "/kvevict_types.i")
}

function for_each(list, name) {
  lists[list] = lists[list] "APPLY(" name ", " type_name(name) ")\n"
}

# ---- Options --------------------------------------------------------------------------

function read_options(file, row, words, n, i, pair, struct) {
  while ((getline row < file) > 0) {
    if (row ~ /^#/) continue
    n = split(row, words, " ")
    if (row ~ /^ /) {
      by[struct, words[1], words[2] == "all" ? "all" : ""] = words[3]
      for (i = split(words[2], pair, ","); i > 0; i--) by[struct, words[1], pair[i]] = words[3]
      continue
    }
    struct = words[1]; options[struct]
    for (i = 2; i <= n; i++) { split(words[i], pair, "="); option[struct, pair[1]] = pair[2] }
  }
  close(file)
}

# What a language makes a property of: "flag", "enum", "count" (32 bits without a sign), "size"
# (64), "int", "long", "float" or "double"; "" if that is done by hand.
function scalar_kind(type, doc) {
  if (type == "uint32_t" && (doc ~ /^1: / || doc ~ /^0: .*\. 1: /)) return "flag"
  if (type == "uint32_t") return "count"
  if (type == "uint64_t") return "size"
  if (type == "int32_t") return "int"
  if (type == "int64_t") return "long"
  if (type == "float" || type == "double") return type
  return kind[type] == "enum" ? "enum" : ""
}

function read_field(word, doc, done, name) {
  word = (filled, $2, "all") in by ? by[filled, $2, "all"] : by[filled, $2, language]
  if (word == "hand") return
  if ($7 == "") fail("no documentation")
  field_at[$2] = ++n_fields
  field_name[n_fields] = $2; field_here[n_fields] = member_name($2)
  field_c_type[n_fields] = $5; field_kind[n_fields] = scalar_kind($5, $7)
  field_by[n_fields] = word; field_init[n_fields] = ""
  doc = $7
  while (match(doc, /`[a-z_]+`/)) { # another field
    name = substr(doc, RSTART + 1, RLENGTH - 2)
    done = done substr(doc, 1, RSTART - 1) \
           ((filled, name) in has_field ? member_name(name) : "`" name "`")
    doc = substr(doc, RSTART + RLENGTH)
  }
  doc = done doc
  field_doc[n_fields] = field_kind[n_fields] == "flag" ? of_flag(doc) : doc
}

# The documentation of a flag where it is true or false.
function of_flag(doc) {
  gsub(/; 0: /, "; false: ", doc); gsub(/\. 0: /, ". false: ", doc); sub(/^0: /, "false: ", doc)
  gsub(/\. 1: /, ". true: ", doc); sub(/^1: /, "true: ", doc)
  return doc
}

function close_options(name, of) {
  if (filled == "") return
  of = enum; in_options = 1; make_options(filled); in_options = 0; enum = of
  for (name in field_at) delete field_at[name]
  filled = ""; n_fields = sized = 0
}

# What comes before a value of an enum outside of its enum.
function of_enum(c_name) { return language == "go" ? "" : type_name(c_name) "." }

# The name here of a struct that callers fill.
function options_name(struct) {
  if ((struct, language) in option && language == "go") return option[struct, language]
  return prefix ((struct, "name") in option ? option[struct, "name"] : camel(struct))
}

# "kvevict_gpu_info" -> "GPUInfo", if GPU is one of the words above. Numbers
# stay apart: "Q8_0".
function camel(name, words, n, i, joined, list) {
  if (!("" in spelling)) {
    n = split(spelled dtype_words, list, " "); spelling[""]
    for (i = 1; i <= n; i++) spelling[tolower(list[i])] = list[i]
  }
  sub(/^kvevict_/, "", name)
  n = split(tolower(name), words, "_")
  for (i = 1; i <= n; i++)
    joined = joined (joined ~ /[0-9]$/ && words[i] ~ /^[0-9]/ ? "_" : "") (words[i] in spelling ? spelling[words[i]] \
                     : toupper(substr(words[i], 1, 1)) substr(words[i], 2))
  return joined
}

# The name of a value within its enum: without the words that both begin with, and
# without ERROR, so "KVEVICT_ROPE_LAYOUT_HALF" of kvevict_rope_layout -> "HALF".
function value_name(enum, value, e, v, n, i) {
  sub(/^KVEVICT_(ERROR_)?/, "", value); sub(/^kvevict_/, "", enum)
  n = split(toupper(enum), e, "_"); split(value, v, "_")
  for (i = 1; i <= n && v[i] == e[i] && substr(value, length(v[i]) + 2) ~ /^[A-Z]/; i++)
    value = substr(value, length(v[i]) + 2)
  return value
}

# Documentation with the names of this language, for a value of `enum` or an enum.
function prose(text, done, name) {
  gsub(/NULL/, nothing, text)
  while (match(text, /[a-z_0-9]+=[a-z0-9]/)) {
    name = substr(text, RSTART, RLENGTH - 2)
    if (name in parameter) name = member_name(name)
    done = done substr(text, 1, RSTART - 1) name "="
    text = substr(text, RSTART + RLENGTH - 1)
  }
  text = done text; done = ""
  while (match(text, /[A-Za-z0-9]+_[A-Za-z0-9_]*[A-Za-z0-9](\.[a-z_]+)?/)) {
    name = substr(text, RSTART, RLENGTH)
    done = done substr(text, 1, RSTART - 1) own_name(name)
    text = substr(text, RSTART + RLENGTH)
  }
  return done text
}

# The name here of a type, a field, a function or a value that C calls `name`.
function own_name(name, parts, value) {
  if (given(name) != "" && given(name) != "-") return given(name)
  if (name ~ /^kvevict_/) {
    split(name, parts, ".")
    if (!(parts[1] in kind)) return call_name(name) == "-" ? name : call_name(name)
    return (parts[1] in options ? options_name(parts[1]) : prefix camel(parts[1])) \
           (parts[2] == "" ? "" : "." member_name(parts[2]))
  }
  if (name ~ /^[a-z]/ && ("KVEVICT_DTYPE_" toupper(name)) in enum_of) return name # "q8_0"
  value = name ~ /^KVEVICT_/ ? name : toupper(enum) "_" name
  if (value in enum_of)
    return (in_options ? of_enum(enum_of[value]) : "") value_here(enum_of[value], value)
  # Sums of a formula have the names of the paper.
  return name ~ /^[a-z][a-z0-9]+_[a-z0-9_]*$/ || name ~ /^[a-z]_[a-z0-9_][a-z0-9_]+$/ \
         ? member_name(name) : name
}

# The method of a function: "kvevict_sequence_end_prompt" -> "KvSequence.EndPrompt";
# "-" if it has none of that kind.
function call_name(c_name, n, nouns, i, rest) {
  if (given(c_name) != "") return given(c_name)
  rest = substr(c_name, 9)
  n = split("paged_sequence paged_cache sequence context plan policy view", nouns, " ")
  for (i = 1; i <= n; i++)
    if (index(rest, nouns[i] "_") == 1)
      return prefix camel(nouns[i]) "." member_name(substr(rest, length(nouns[i]) + 2))
  if (rest ~ /^(score|rotate)/) return prefix camel("plan") "." member_name(rest)
  if (rest ~ /^(select|compact|reorder|attend)/)
    return prefix camel("context") "." member_name(rest)
  return "-"
}

# A field or method: "head_dim" -> "HeadDim", or "headDim" if they begin small.
function member_name(c_name, name) {
  if (given(c_name) != "") return given(c_name)
  name = c_name
  if (counted) sub(/stride_bytes$/, "stride", name)
  if (counted && sub(/^n_/, "", name) && n_names != "") {
    if (!sub(/ies$/, "y", name)) sub(/s$/, "", name)
    name = name "_" n_names
  }
  name = camel(name)
  return begins_small ? tolower(substr(name, 1, 1)) substr(name, 2) : name
}

function given(c_name, n, i, list, pair) {
  if (!("" in other)) {
    other[""]; n = split(named, list, " ")
    for (i = 1; i <= n; i++) { split(list[i], pair, "="); other[pair[1]] = pair[2] }
  }
  return c_name in other ? other[c_name] : ""
}

# The kind, in any language, of the values of a parameter with C++ type `type`.
function param_kind(type) {
  if (type == "double" || type == "CountOrShare") return "number"
  if (type == "uint32_t") return "count"
  if (type == "uint64_t") return "seed"
  return type == "bool" ? "flag" : "word"
}

# Lines of at most 95 characters, each after `indent`.
function wrapped(text, indent, words, n, i, line, all) {
  n = split(text, words, " ")
  line = indent
  for (i = 1; i <= n; i++) {
    if (line != indent && length(line) + length(words[i]) >= 95) {
      all = all line "\n"; line = indent
    }
    line = line (line == indent ? "" : " ") words[i]
  }
  return all line "\n"
}

function fail(why) {
  print FILENAME ": " why ": " $0 > "/dev/stderr"
  failed = 1; exit 1
}
