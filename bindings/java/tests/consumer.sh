#!/usr/bin/env bash
# consumer.sh JAR NATIVES_JAR PLATFORM: a program of one's own, outside of the tree, on the
# class path and as a module.
set -euo pipefail
jar=$1 natives=$2 platform=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/jars"
cp "$jar" "$natives" "$work/jars"
cp -R "$here/consumer" "$work/app"
cd "$work"
javac -Xlint:all -Werror -cp "jars/$(basename "$jar")" -d plain app/consumer/App.java
java -cp 'jars/*:plain' consumer.App
javac -Xlint:all,-requires-automatic -Werror -p jars -d modular \
  app/module-info.java app/consumer/App.java
java -p jars:modular --add-modules "dev.kvevict.natives.$platform" -m consumer/consumer.App
