#!/usr/bin/env bash
# maven.sh README VERSION JAR NATIVES_JAR POM: the README's commands put the files where Maven
# looks for what its <dependency> elements name.
set -euo pipefail
readme=$1 version=$2
shift 2
if ! command -v mvn >/dev/null; then
  echo "skipped: no mvn"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$@" "$work"
cd "$work"
mkdir .mvn
echo "-B -DlocalRepositoryPath=$work/repository" >.mvn/maven.config
# Debian's packages are a repository of their own, for work without a network.
debian=/usr/share/maven-repo
if [[ -d $debian/org/apache/maven/plugins/maven-install-plugin ]]; then
  echo "-o -Dmaven.repo.local=$debian" >>.mvn/maven.config
fi
mapfile -t commands < <(sed -n "/^mvn install:install-file/s/-V/-$version/gp" "$readme")
[[ ${#commands[@]} == 2 ]]
for command in "${commands[@]}"; do
  echo "$command"
  if ! eval "$command" >log 2>&1; then
    cat log
    if grep -q 'No plugin found for prefix' log; then
      echo "skipped: neither a network nor Debian's libmaven-install-plugin-java"
      exit 77
    fi
    exit 1
  fi
done
for file in "$@"; do
  cmp "$file" "repository/dev/kvevict/kvevict/$version/$(basename "$file")"
done
