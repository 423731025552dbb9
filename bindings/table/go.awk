# Go: the public package has enums.go; parameters.go, the methods of Policy; and options.go, which
# is options.go.in with the fields that a line @STRUCT stands for, and the methods that copy them.
# internal/native has structs.go, where pointers are numbers and the caller keeps what
# they point to alive; layout.go, which go_grow compiles: it does only if Go lays the structs out as
# C does; and names.go, the names here of functions that messages name. replay_fields_test.go
# sets the fields of options.go to what a line of the transcript names.
BEGIN {
  language = "go"; nothing = "nil"; counted = 1
  named = "n_queries=Rows KVEVICT_POSITION_NEXT=PositionNext " \
          "rope_inv_freq_len=len(RoPEInvFreq) kvevict_view.first_recent=Layout.FirstRecent " \
          "kvevict_paged_cache_bytes=- " \
          "kvevict_paged_cache_get_usage=PagedCache.Usage kvevict_policy_at=- " \
          "kvevict_policy_copy=- " \
          "kvevict_policy_format=Policy.String kvevict_policy_get=- " \
          "kvevict_policy_get_number=- kvevict_policy_need=Policy.NeedOf kvevict_policy_set=- " \
          "kvevict_policy_set_number=-"
  spelled = "ABI CPU CUDA DType GPU KV LLM LSE LibCUDA LibNVRTC NVRTC OK RoPE SIMD"
  split("bool char double float int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t " \
        "uint64_t size_t uintptr_t", c, " ")
  split("bool byte float64 float32 int8 uint8 int16 uint16 int32 uint32 int64 " \
        "uint64 uint64 uintptr", go, " ")
  for (i in c) number[c[i]] = go[i]
  of_kind["number"] = "float64"; of_kind["count"] = "int"; of_kind["seed"] = "uint64"
  of_kind["flag"] = "bool"; of_kind["word"] = "string"
  of_scalar["count"] = "int"; of_scalar["int"] = "int32"; of_scalar["size"] = "uint64"
  of_scalar["long"] = "int64"; of_scalar["flag"] = "bool"; of_scalar["float"] = "float32"
  of_scalar["double"] = "float64"
  enums = out "/enums.go"; structs = out "/structs.go"; layout = out "/layout.go"
  made = "// Code generated from the headers by bindings/go/generate.sh. DO NOT EDIT.\n\n"
  printf "%spackage kvevict\n", made > enums
  printf "%spackage native\n\n// Constants of the headers.\nconst (\n", made > structs
  printf "%spackage native\n\nimport \"unsafe\"\n\nvar (\n", made > layout
}

$1 == "constant" {
  text = $4 == "" ? "" : wrapped($4, "// ")
  constants = constants text camel(substr($2, 9)) " = " $3 "\n"
}

$1 == "enum" || $1 == "struct" { close_type() }
$1 == "enum" {
  open_file = enums; enum = $2
  printf "\n%stype %s int32\n\n// Values of %s.\nconst (\n", comment(type_name($2), $3),
         type_name($2), type_name($2) > enums
}
$1 == "value" {
  printf "%s%s %s = %s\n", wrapped(prose($4), "// "), value_here(enum, $2), type_name(enum), $3 > enums
}

$1 == "param" {
  kind_here = param_kind($3); name = member_name($2); of = of_kind[kind_here]
  parameters = parameters "\n" comment(name, $4) "func (p Policy) " name "() (" of \
               ", error) { return p." kind_here "(\"" $2 "\") }\n\n// Set" name " sets what " \
               name " returns.\nfunc (p *Policy) Set" name "(value " of \
               ") error { return p.set" camel(kind_here) "(\"" $2 "\", value) }\n"
}

$1 == "call" && call_name($2) != "-" {
  names = names "case \"" $2 "\": return \"" call_name($2) "\"\n"
}

$1 == "struct" {
  open_file = structs; struct = type_name($2)
  body = body "\n// " struct " is " $2 ".\ntype " struct " struct {\n"
  printf "_ [%s]byte = [unsafe.Sizeof(%s{})]byte{}\n", $3, struct > layout
}
$1 == "field" {
  body = body camel($2) " " ($6 ? "[" $6 "]" : "") type($5) "\n"
  printf "_ [%s]byte = [unsafe.Offsetof(%s{}.%s)]byte{}\n", $3, struct, camel($2) > layout
}

# The values of an INIT macro.
$1 == "init" { inits = inits (inits == "" ? "" : ", ") camel($2) ": " $3 }

END {
  close_type()
  printf "%s)\n%s", constants, body > structs
  print ")" > layout
  printf "%spackage native\n\n// OwnName is what Go calls a function of C.\nfunc OwnName(name string) " \
         "string {\nswitch name {\n%s}\nreturn name\n}\n", made, names > (out "/names.go")
  write_options()
  printf "%spackage kvevict\n%s", made, replays > (out "/replay_fields_test.go")
  sub(/the headers/, "params.inc", made)
  printf "%spackage kvevict\n%s", made, parameters > (out "/parameters.go")
}

function make_options(struct, i, typed, from, value, copies, reads, native, named) {
  native = "native." type_name(struct)
  for (i = 1; i <= n_fields; i++) {
    typed = field_kind[i] == "enum" ? type_name(field_c_type[i]) \
            : of_scalar[field_by[i] == "int" ? "count" : field_kind[i]]
    enum = field_c_type[i]
    if (field_by[i] != "given")
      fields_of[struct] = fields_of[struct] wrapped(prose(field_doc[i]), "\t// ") "\t" \
                          field_here[i] " " typed "\n"
    if (field_by[i] != "given")
      named = named "l.set(\"" field_name[i] "\", &o." field_here[i] ")\n"
    value = "o." field_here[i]
    if (typed == "int") value = "count(err, \"" field_here[i] "\", " value ")"
    if (field_by[i] == "int") value = "uint64(" value ")"
    if (field_kind[i] == "flag") value = "flag(" value ")"
    if (field_kind[i] == "enum") value = "int32(" value ")"
    copies = copies camel(field_name[i]) ": " value ",\n"
    from = "n." camel(field_name[i])
    reads = reads "o." field_here[i] " = " \
            (typed == "bool" ? from " != 0" : typed "(" from ")") "\n"
  }
  methods = methods "\n// scalars is the struct of C with the fields of o that are plain values.\n" \
            "func (o *" options_name(struct) ") scalars(err *error) " native " {\nreturn " \
            native "{\n" (sized ? "StructSize: uint32(unsafe.Sizeof(" native "{})),\n" : "") \
            copies "}\n}\n"
  if ((struct, "read") in option)
    methods = methods "\n// read sets these fields to those of a struct that C filled.\n" \
              "func (o *" options_name(struct) ") read(n *" native ") {\n" reads "}\n"
  if (named != "")
    replays = replays "\nfunc (o *" options_name(struct) ") apply(l *line) {\n" named "}\n"
}
function write_options(line, file, struct) {
  file = out "/options.go"
  printf "%s", made > file
  while ((getline line < "bindings/go/options.go.in") > 0) {
    struct = line
    if (!sub(/^\t@/, "", struct)) { print line > file; continue }
    if (!(struct in options)) fail("options.txt has not " struct)
    printf "%s", fields_of[struct] > file
  }
  printf "%s", methods > file
}
# The documentation of a name, which begins with it.
function comment(name, text) {
  text = (text ~ /^[A-Z][a-z]+[ ,:]/ ? tolower(substr(text, 1, 1)) : substr(text, 1, 1)) \
         substr(text, 2)
  return wrapped(prose(name ": " text), "// ")
}
function close_type() {
  if (open_file == enums) print ")" > enums
  if (open_file == structs) body = body "}\n"
  if (inits != "")
    body = body "\n// Init" struct " is what its INIT macro sets.\nfunc Init" struct "() " struct \
           " {\nreturn " struct "{" inits "}\n}\n"
  inits = ""
  open_file = ""
}
# The prefix makes the name one of the package's: KVEVICT_DTYPE_F32 -> DTypeF32.
function value_here(enum, value, name) {
  name = value_name(enum, value)
  return name == substr(value, 9) || value ~ /^KVEVICT_ERROR_/ ? camel(enum) camel(name) \
                                                               : camel(substr(value, 9))
}
function type_name(c_name) { return camel(c_name) }
function type(c) {
  if (c ~ /\*$/ || kind[c] == "function") return "uintptr"
  if (kind[c] == "alias") return type(alias[c])
  if (kind[c] == "enum") return "int32" # the package has no enums
  if (kind[c] == "struct") return type_name(c)
  if (!(c in number)) fail("no Go type for " c)
  return number[c]
}
