# The tables of all languages have this in common. Each is made by
#
#   awk -v out=FOLDER -f names.awk -f LANGUAGE.awk TABLE
#
# from what pkg/abi/table.sh prints, a row `call name` for each function, and what params.c
# prints. LANGUAGE.awk has the functions type_name(c_name) and value_here(enum, value).
# `spelled` has the words that are not written Likethis, `named` names that do not follow from
# the C name: c=here ..., where "-" is none, and `nothing` what NULL is. FOLDER also gets
# kvevict_types.i, SWIG's lists of the header's types and their names here.
BEGIN {
  FS = "\t"
  # Documentation also names what comes later.
  while ((getline row < ARGV[1]) > 0) {
    split(row, cell, "\t")
    if (cell[1] ~ /^(enum|struct|handle|alias|function)$/) kind[cell[2]] = cell[1]
    if (cell[1] == "enum") enum_of_row = cell[2]
    if (cell[1] == "param") parameter[cell[2]]
    if (cell[1] == "value") enum_of[cell[2]] = enum_of_row
  }
  close(ARGV[1])
}
$1 == "enum" { kind[$2] = "enum"; for_each("ENUM", $2) }
$1 == "handle" { kind[$2] = "handle"; for_each("HANDLE", $2) }
$1 == "struct" { kind[$2] = "struct"; for_each("STRUCT", $2) }
$1 == "alias" { kind[$2] = "alias"; alias[$2] = $3 }
$1 == "function" { kind[$2] = "function"; signature[$2] = $0 }
END {
  if (failed) exit 1
  for (list in lists)
    printf "%%define KV_FOR_EACH_%s(APPLY)\n%s%%enddef\n", list,
           lists[list] > (out "/kvevict_types.i")
}

function for_each(list, name) {
  lists[list] = lists[list] "APPLY(" name ", " type_name(name) ")\n"
}

# "kvevict_gpu_info" -> "GPUInfo", if GPU is among the words of `spelled`. Numbers
# stay apart: "Q8_0".
function camel(name, words, n, i, joined, list) {
  if (!("" in spelling)) {
    n = split(spelled, list, " "); spelling[""]
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
    return prefix camel(parts[1]) (parts[2] == "" ? "" : "." member_name(parts[2]))
  }
  value = name ~ /^KVEVICT_/ ? name : toupper(enum) "_" name
  if (value in enum_of) return value_here(enum_of[value], value)
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
  name = camel(c_name)
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
