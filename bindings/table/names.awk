# What the tables of all languages have in common. Each is made by
#
#   awk -v out=FOLDER -f names.awk -f LANGUAGE.awk TABLE
#
# from what pkg/abi/table.sh prints. LANGUAGE.awk has the function type_name(c_name), and
# in `spelled` the words that are not written Likethis. Into FOLDER goes also
# kvevict_types.i, SWIG's lists of the header's types and of their names here.
BEGIN { FS = "\t" }
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

# "kvevict_gpu_info" -> "GPUInfo", if GPU is among the words of `spelled`; and numbers
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

# The name of a value inside of its enum: without the words that both begin with, and
# without ERROR, so "KVEVICT_POOL_EDGE_PAD" of kvevict_pool_edge -> "PAD".
function value_name(enum, value, e, v, n, i) {
  sub(/^KVEVICT_(ERROR_)?/, "", value); sub(/^kvevict_/, "", enum)
  n = split(toupper(enum), e, "_"); split(value, v, "_")
  for (i = 1; i <= n && v[i] == e[i] && substr(value, length(v[i]) + 2) ~ /^[A-Z]/; i++)
    value = substr(value, length(v[i]) + 2)
  return value
}

# Documentation with the names of this language.
function prose(text, done, name) {
  while (match(text, /kvevict_[a-z0-9_]+/)) {
    name = substr(text, RSTART, RLENGTH)
    done = done substr(text, 1, RSTART - 1) prefix camel(name)
    text = substr(text, RSTART + RLENGTH)
  }
  return done text
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
