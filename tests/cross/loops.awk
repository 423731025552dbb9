# Reads `objdump -d --no-show-raw-insn -C` and prints each loop that holds no other:
# "function", instructions, multiply-adds of vectors and loads, with tabs between them.
function flush_function(i, j, is_inner) {
  for (i = 0; i < n_loops; ++i) {
    is_inner = 1
    for (j = 0; j < n_loops; ++j)
      if (first[j] >= first[i] && last[j] <= last[i] && last[j] - first[j] < last[i] - first[i])
        is_inner = 0
    if (is_inner)
      print name "\t" last[i] - first[i] + 1 "\t" \
        n_adds[last[i]] - n_adds[first[i] - 1] "\t" n_loads[last[i]] - n_loads[first[i] - 1]
  }
  n = n_loops = 0
  split("", place)
}
/^[0-9a-f]+ <.*>:$/ {
  flush_function()
  name = $0
  sub(/^[0-9a-f]+ </, "", name)
  sub(/>:$/, "", name)
}
/^ *[0-9a-f]+:\t/ && $2 != "nop" {
  place[substr($1, 1, length($1) - 1)] = ++n
  n_adds[n] = n_adds[n - 1] + ($2 ~ /^(fmla|fmls|fmad|fmsb|fnmls|vfn?m(add|sub).*ps)$/)
  n_loads[n] = n_loads[n - 1] + ($2 ~ /^ld/)
  if ($2 ~ /^(b\.|cbn?z|tbn?z)/) {
    target = $0
    sub(/ <.*/, "", target)
    sub(/.*[ \t]/, "", target)
    if (target in place) {
      first[n_loops] = place[target]
      last[n_loops++] = n
    }
  }
}
END { flush_function() }
