# Turns kvevict.h into a C program that prints, for every struct, its size and the
# offset and size of every field, and for every enumerator and constant its value. The
# header is uniform enough for this to be complete; layout.awk fails on what it does
# not understand rather than leave it out.
BEGIN {
  print "#include <inttypes.h>\n#include <stdio.h>\n\n#include \"kvevict/kvevict.h\"\n"
  print "int main(void) {"
}

# Comments go first; they may span lines.
{
  line = $0
  while (1) {
    if (in_comment) {
      if (!(end = index(line, "*/"))) { line = ""; break }
      line = substr(line, end + 2); in_comment = 0
    }
    if (!(start = index(line, "/*"))) break
    rest = substr(line, start + 2)
    if (end = index(rest, "*/")) line = substr(line, 1, start - 1) substr(rest, end + 2)
    else { in_comment = 1; line = substr(line, 1, start - 1); break }
  }
  $0 = line
}

/^typedef struct [a-z_]+ \{$/ { struct = $3; n_fields = 0; next }
/^\} [a-z_]+;$/ && struct != "" {
  printf "  printf(\"%s %%zu\\n\", sizeof(%s));\n", struct, struct
  for (i = 0; i < n_fields; i++)
    printf "  printf(\"%s.%s %%zu %%zu\\n\", offsetof(%s, %s), sizeof(((%s *)0)->%s));\n",
           struct, field[i], struct, field[i], struct, field[i]
  struct = ""; next
}
struct != "" && NF {  # a declaration may continue on the next line
  declaration = declaration " " $0
  if ($0 !~ /; *$/) next
  if (declaration !~ /^ +[a-z][^;(]*[ *][a-z_0-9]+(\[[0-9]+\])?; *$/) {
    print "layout.awk: line " FNR ": not a field:" declaration > "/dev/stderr"
    failed = 1; exit
  }
  name = $NF; sub(/\[.*/, "", name); gsub(/[*;]/, "", name)
  field[n_fields++] = name; declaration = ""; next
}
/^  KVEVICT_[A-Z0-9_]+ = / {
  printf "  printf(\"%s %%\" PRId64 \"\\n\", (int64_t)%s);\n", $1, $1
}
/^#define KVEVICT_ABI_VERSION / {
  printf "  printf(\"%s %%d\\n\", (int)%s);\n", $2, $2
}
END {
  if (failed) exit 1
  print "  return 0;\n}"
}
