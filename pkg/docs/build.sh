#!/usr/bin/env bash
# build.sh: builds the documentation site into build/site and checks every link in it.
# Needs mkdocs; uses mkdocs-material and doxygen where they are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

rm -rf build/docs build/site
mkdir -p build
cp -r docs build/docs
python3 pkg/docs/measured.py >build/docs/measured.md
theme=()
if [[ ! -d /usr/share/mkdocs/themes/material ]]; then
  echo "no mkdocs-material: the theme is mkdocs' own"
  theme=(--theme mkdocs)
fi
if command -v doxygen >/dev/null; then
  version=$(sed -n 's/^#define KVEVICT_VERSION_[A-Z]* //p' capi/include/kvevict/kvevict.h |
    paste -sd .)
  { cat pkg/docs/Doxyfile && printf 'OUTPUT_DIRECTORY = build/docs\nPROJECT_NUMBER = %s\n' \
    "$version"; } | doxygen - >build/doxygen.log 2>&1 || { cat build/doxygen.log && exit 1; }
else
  echo "no doxygen: the page of the C API names the headers alone"
  mkdir build/docs/api
  echo '<!doctype html><title>C API</title><p>The API is described in include/kvevict/*.h.' \
    >build/docs/api/index.html
fi
mkdocs build --strict -f pkg/docs/mkdocs.yml -d "$PWD/build/site" "${theme[@]}"
python3 pkg/docs/check_links.py build/site
echo "build/site/index.html is ready; its search needs a server: python3 -m http.server -d build/site"
