#!/usr/bin/env bash
# example.sh PACKAGE_INFO JAR NATIVES_JAR: the example of the package's documentation compiles
# and runs.
set -euo pipefail
info=$1 jar=$2 natives=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
{
  cat <<'JAVA'
import dev.kvevict.*;
import java.nio.*;
import java.util.*;
public class Example {
  static final int LAYERS = 2, QH = 8, KVH = 2, D = 64, N = 1024;
  static FloatBuffer[] rows(int heads) {
    FloatBuffer[] rows = new FloatBuffer[LAYERS];
    Arrays.setAll(rows, i -> ByteBuffer.allocateDirect(N * heads * D * 4)
        .order(ByteOrder.nativeOrder()).asFloatBuffer());
    return rows;
  }
  public static void main(String[] args) {
    FloatBuffer[] q = rows(QH), k = rows(KVH), v = rows(KVH);
JAVA
  sed -n '/<pre>{@code/,/}<\/pre>/p' "$info" | sed '1d; $d; s/^ \* \{0,1\}//' |
    sed 's|^ *int slot = .*|&\nif (layer == 0) System.out.println(slot + " " + position);|'
  echo '}}'
} >Example.java
javac -cp "$jar" -d . Example.java
output=$(java -cp "$jar:$natives:." Example)
echo "$output"
[[ $output == "512 1024" ]]
