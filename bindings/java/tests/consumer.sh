#!/usr/bin/env bash
# consumer.sh class|module|jlink JAR NATIVES_JAR PLATFORM: a program of one's own, outside of the
# tree: on the class path, as a module, or in an image that has a Java of its own.
set -euo pipefail
where=$1 jar=$2 natives=$3 platform=$4
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/jars"
cp "$jar" "$natives" "$work/jars"
cp -R "$here/consumer" "$work/app"
cd "$work"
sed -i "s/linux_x86_64/$platform/" app/module-info.java
if [[ $where == class ]]; then
  javac -J-XX:TieredStopAtLevel=1 -Xlint:all -Werror -cp "jars/$(basename "$jar")" -d plain app/consumer/App.java
  java -cp 'jars/*:plain' consumer.App
  exit
fi
javac -J-XX:TieredStopAtLevel=1 -Xlint:all -Werror -p jars -d modular app/module-info.java app/consumer/App.java
if [[ $where == module ]]; then
  java -p jars:modular -m consumer/consumer.App
  exit
fi
if ! command -v jlink >/dev/null; then
  echo "skipped: no jlink in the JDK"
  exit 77
fi
jlink -p jars:modular --add-modules consumer --output image --launcher app=consumer/consumer.App
rm -r jars modular # the image has all that it needs
env -i TMPDIR="$work" image/bin/app
