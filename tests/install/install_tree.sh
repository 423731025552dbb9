#!/usr/bin/env bash
# install_tree.sh BUILD PREFIX: installs and then moves the tree, so that the tests
# that use it notice a path into the build or to the first place.
set -euo pipefail
rm -rf "$2" "$2.first"
cmake --install "$1" --prefix "$2.first" >/dev/null
mv "$2.first" "$2"
find "$2" -type f -o -type l | sort
