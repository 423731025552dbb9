# Turns headers into a C program that prints what they define beside functions, a row
# each, words apart by tabs:
#
#   constant  name  value   documentation
#   handle    name
#   alias     name  type
#   function  name  result  types of the parameters ...
#   enum      name  documentation             its values follow
#   value     name  value   documentation
#   struct    name  size                      its fields follow
#   field     name  offset  size  type  length of an array, otherwise 0  documentation
#   init      name  value                     its INIT macro sets a field to this, and
#                                             those that it does not list to 0
#
# Types are written without const. The headers are uniform enough for this to be complete;
# what is not understood is an error rather than left out.
BEGIN {
  print "#include <inttypes.h>\n#include <stddef.h>\n#include <stdio.h>\n#include <string.h>\n"
  for (i = 1; i < ARGC; i++) {
    header = ARGV[i]; sub(/.*\//, "", header)
    printf "#include \"kvevict/%s\"\n", header
  }
  print "\nstatic void print_init(const char* name, const void* field, size_t size) {"
  print "  uint64_t bits = 0;"
  print "  if (size <= sizeof bits) memcpy(&bits, field, size);"
  print "  if (bits != 0) printf(\"init\\t%s\\t%\" PRIu64 \"\\n\", name, bits);"
  print "}\n\nint main(void) {"
}

# Comments go first; they may span lines. What documents the declaration that comes is
# kept in `before`, what documents the one that has been in `after`.
{
  line = $0; after = ""
  if (in_comment) { sub(/^ *\*( +|$)/, "", line) }
  while (1) {
    if (in_comment) {
      if (!(end = index(line, "*/"))) { comment = comment " " line; next }
      documented(comment " " substr(line, 1, end - 1))
      line = kept substr(line, end + 2); in_comment = 0
    }
    if (!(start = index(line, "/*"))) break
    kept = substr(line, 1, start - 1); line = substr(line, start + 2)
    comment = ""; in_comment = 1
  }
  sub(/ +$/, "", line)
  if (line == "" && after == "") next
  $0 = line
}

skip { skip = /\\$/; next } # of a macro

/^#define KVEVICT_[A-Z0-9_]+ (-?[0-9]+u?|0x[0-9a-fA-F]+|U?INT(32|64)_MAX)$/ {
  printf "  printf(\"constant\\t%s\\t%%\" PRId64 \"\\t%%s\\n\", (int64_t)%s, %s);\n",
         $2, $2, quoted(take())
  next
}
/^#define KVEVICT_[A-Z0-9_]+_INIT( |$)/ { print_init($2); skip = /\\$/; next }
/^#define KVEVICT_([A-Z0-9_]+_H_|API|NOEXCEPT|INT32|INT32_TYPE\(name\))( |$)/ { skip = /\\$/; next }
/^#define / { fail("not a number") }
/^#/ { next }

/^KVEVICT_INT32_TYPE\([a-z0-9_]+\)$/ { next } # of the enum that follows
/^enum [a-z0-9_]+ KVEVICT_INT32 \{$/ {
  enum = $2
  if (before == "") fail("no documentation")
  printf "  printf(\"enum\\t%s\\t%%s\\n\", %s);\n", enum, quoted(take()); next
}
/^\};$/ && enum != "" { print_value(); enum = ""; next }
enum != "" {
  if (/^  KVEVICT_[A-Z0-9_]+ = -?[0-9]+,?$/) { print_value(); value = $1; doc = take() }
  else if (NF) fail("not a value")
  if (after != "") doc = after
  next
}

/^typedef struct [a-z0-9_]+ [a-z0-9_]+;$/ {
  printf "  printf(\"handle\\t%s\\n\");\n", $3; before = ""; next
}
/^typedef struct [a-z0-9_]+ \{$/ {
  struct = $3; before = ""; n_fields = 0
  printf "  printf(\"struct\\t%s\\t%%zu\\n\", sizeof(%s));\n", struct, struct; next
}
/^\} [a-z0-9_]+;$/ && struct != "" { struct = ""; next }
struct != "" || /^typedef / || declaration != "" { # it may go on in the next line
  if (declaration == "") doc = take()
  declaration = declaration " " $0; before = ""
  if (after != "") doc = after
  if (!/;$/) next
  sub(/^ +/, "", declaration); gsub(/ +/, " ", declaration)
  if (struct != "") print_field(declaration)
  else print_type(declaration)
  declaration = ""; next
}
/^(struct|union|enum)/ { fail("not understood") }
NF { before = "" } # it was a function's

END {
  if (!failed) print "  return 0;\n}"
  exit failed
}

function documented(text, is_after) {
  if (!sub(/^ *\*/, "", text)) return
  is_after = sub(/^</, "", text)
  gsub(/ +/, " ", text); gsub(/^ | $/, "", text)
  if (is_after) after = text
  else before = text
}
function take(taken) { taken = before; before = ""; return taken }

function print_value() {
  if (value == "") return
  if (doc == "") fail(value " has no documentation, before")
  printf "  printf(\"value\\t%s\\t%%d\\t%%s\\n\", (int)%s, %s);\n", value, value,
         quoted(doc)
  value = ""
}
function print_field(text, name, array, it) {
  if (text !~ /^[a-z][a-z0-9_* ]*[ *][a-z0-9_]+(\[[A-Z0-9_]+\])?;$/) fail("not a field")
  array = sub(/\[.*\]/, "", text)
  name = last_word(text); fields[++n_fields] = name; last_struct = struct; it = "((" struct "*)0)->" name
  printf "  printf(\"field\\t%s\\t%%zu\\t%%zu\\t%s\\t%%zu\\t%%s\\n\", offsetof(%s, %s), " \
         "sizeof(%s), %s, %s);\n", name, type_of(text), struct, name, it,
         array ? "sizeof(" it ") / sizeof(" it "[0])" : "(size_t)0", quoted(doc)
}
# The macro follows its struct.
function print_init(macro, of, i) {
  of = tolower(macro); sub(/_init$/, "", of)
  if (of != last_struct) fail("not behind its struct")
  printf "  {\n    const %s init = %s;\n", of, macro
  for (i = 1; i <= n_fields; i++)
    printf "    print_init(\"%s\", &init.%s, sizeof init.%s);\n", fields[i], fields[i], fields[i]
  print "  }"
}
function print_type(text, row, name, n, i, parameters) {
  sub(/^typedef /, "", text)
  if (match(text, /\(\*[a-z0-9_]+\)\(/)) {
    row = "function\\t" substr(text, RSTART + 2, RLENGTH - 4) \
          "\\t" type_of(substr(text, 1, RSTART - 1) " x")
    n = split(substr(text, RSTART + RLENGTH), parameters, ",")
    for (i = 1; i <= n; i++) row = row "\\t" type_of(parameters[i])
  } else if (text ~ /^[a-z0-9_]+\*? [a-z0-9_]+;$/) {
    name = last_word(text)
    row = "alias\\t" name "\\t" type_of(text)
  } else fail("not a type")
  printf "  printf(\"%s\\n\");\n", row
}
function last_word(text) { gsub(/^.*[ *]|[);]+$/, "", text); return text }
# "const type *name" -> "type*"
function type_of(text) {
  gsub(/const |[);]+$/, "", text); gsub(/const\*/, "*", text)
  sub(/[a-z0-9_]+ *$/, "", text); gsub(/ /, "", text)
  return text
}
function quoted(text) { gsub(/[\\"]/, "\\\\&", text); return "\"" text "\"" }
function fail(why) {
  print "table.awk: " FILENAME ": line " FNR ": " why ": " $0 > "/dev/stderr"
  failed = 1; exit 1
}
