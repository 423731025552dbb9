#!/usr/bin/env bash
# loader.sh JAR NATIVES_JAR LIBRARY: each way to find the native library, and what is said
# when none works.
set -euo pipefail
jar=$1 natives=$2 library=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >Hello.java <<'JAVA'
public class Hello {
  public static void main(String[] args) {
    System.out.println("kvevict " + dev.kvevict.KvEvict.version());
  }
}
JAVA
javac -cp "$jar" -d . Hello.java

works() { # description, java options...
  local output
  output=$(java "${@:2}" Hello 2>&1) || { echo "$1: $output" && exit 1; }
  [[ $output == "kvevict "[0-9]* ]] || { echo "$1: $output" && exit 1; }
  echo "$1: $output"
}
works jar -cp "$jar:$natives:."
works property -cp "$jar:." -Dkvevict.library.path="$library"
works java.library.path -cp "$jar:." -Djava.library.path="$(dirname "$library")"
mkdir unpacked
works unpack.dir -cp "$jar:$natives:." -Dkvevict.unpack.dir="$work/unpacked" \
  -Djava.io.tmpdir=/nonexistent
[[ -z $(ls unpacked) ]] || { echo "left behind: $(ls unpacked)" && exit 1; }

output=$(java -cp "$jar:." -Dkvevict.library.path=/nonexistent/a.so Hello 2>&1) &&
  { echo "loaded nothing, and works: $output" && exit 1; }
for part in UnsatisfiedLinkError 'property kvevict.library.path' /nonexistent/a.so \
  META-INF/native/dev.kvevict/linux java.library.path \
  'natives jars for linux-x86_64, linux-aarch64 and windows-x86_64'; do
  grep -qF -- "$part" <<<"$output" || { echo "does not name $part: $output" && exit 1; }
done
echo "error: every place is named"
