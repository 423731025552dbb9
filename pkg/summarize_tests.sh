#!/usr/bin/env bash
# summarize_tests.sh FILE...: reads ctest's JUnit files, says why tests were skipped
# and ends with one line: "N passed, N failed, N skipped". Fails if a test failed or
# could not be started. A missing file is a failure.
set -euo pipefail

results=() n_missing=0
for file in "$@"; do
  if [[ -s $file ]]; then
    results+=("$file")
  else
    echo "no test ran for ${file##*/}"
    n_missing=$((n_missing + 1))
  fi
done
# One <testcase> per test, its status on the same line, its output in <system-out>.
# A program may also skip single cases; each prints a line "skipped: reason".
# "notrun" is a skip only if the test itself asked for it (exit code 77); otherwise the
# program is missing or a fixture failed.
awk -v failed="$n_missing" '
  function value(key) {
    if (!match($0, key "=\"[^\"]*\"")) return ""
    return substr($0, RSTART + length(key) + 2, RLENGTH - length(key) - 3)
  }
  /<testcase / { name = value("name"); status = value("status"); reason = ""; cases = 0
                 if (status == "run") passed++
                 else if (status == "fail") failed++ }
  /<skipped message=/ && status == "notrun" {
    asked = value("message") ~ /SKIP_RETURN_CODE/
    if (asked) skipped++
    else { failed++; print "not run: " name ": " value("message") }
  }
  { line = $0; sub(/^[ \t]*<system-out>/, "", line); sub(/<\/system-out>.*/, "", line) }
  /<system-out>/ { inside = 1 }
  inside && line != "" { reason = line }
  inside && line ~ /^skipped: / { cases++; why = substr(line, 10) }
  /<\/system-out>/ { inside = 0 }
  /<\/testcase>/ && status == "run" && cases > 0 {
    skipped += cases
    print "skipped in " name ": " cases (cases > 1 ? " cases, the last: " : " case: ") why
  }
  /<\/testcase>/ && status == "notrun" && asked {
    gsub(/&quot;/, "\"", reason); gsub(/&lt;/, "<", reason)
    gsub(/&gt;/, ">", reason); gsub(/&amp;/, "\\&", reason)
    print "skipped: " name ": " reason
  }
  END {
    printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
    exit failed > 0 || passed == 0
  }' /dev/null "${results[@]}"
