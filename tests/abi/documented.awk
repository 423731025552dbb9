# Names every parameter of a public function whose comment does not describe it.
/^\/\*\*/ { comment = ""; in_comment = 1 }
in_comment { comment = comment "\n" $0 }
/\*\// { in_comment = 0 }
/^KVEVICT_API / { declaration = "" ; in_declaration = 1 }
in_declaration { declaration = declaration " " $0 }
in_declaration && /;/ {
  in_declaration = 0
  ++n_functions
  sub(/ KVEVICT_NOEXCEPT;.*/, "", declaration)
  match(declaration, /kvevict_[a-z0-9_]+ *\(/)
  name = substr(declaration, RSTART, RLENGTH - 1)
  parameters = substr(declaration, RSTART + RLENGTH)
  sub(/\) *$/, "", parameters)
  n = split(parameters, each, ",")
  for (i = 1; i <= n; ++i) {
    if (each[i] ~ /^ *void *$/) continue
    match(each[i], /[a-z0-9_]+ *$/)
    parameter = substr(each[i], RSTART, RLENGTH)
    sub(/ +$/, "", parameter)
    ++n_parameters
    if (comment ~ "@param\\[[a-z,]+\\] +" parameter "[^a-z0-9_]") continue
    printf "%s: %s is not described\n", name, parameter
    n_missing++
  }
}
END {
  printf "%d functions, %d parameters, %d not described\n", n_functions,
         n_parameters, n_missing
  exit n_missing > 0 || n_functions < 50
}
