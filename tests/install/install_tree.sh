#!/usr/bin/env bash
# install_tree.sh BUILD PREFIX: installs, and moves the tree afterwards, so that a path
# into the build or to the first place is noticed by the tests that use it.
set -euo pipefail
rm -rf "$2" "$2.first"
cmake --install "$1" --prefix "$2.first" >/dev/null
mv "$2.first" "$2"
find "$2" -type f -o -type l | sort
