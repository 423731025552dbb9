#!/usr/bin/env bash
# run.sh TEST FOLDER NATIVE: runs TEST with the npm packages in FOLDER. Exits with 77
# where something is missing; with KVEVICT_WEB_REQUIRED set that is a failure.
set -u
test=$1 folder=$2
export KVEVICT_NATIVE=$3 KVEVICT_WEBGPU_MODULES=$2/package.json

missing() {
  echo "skipped: $*; ./run check web installs it"
  [[ -z ${KVEVICT_WEB_REQUIRED:-} ]] && exit 77
  exit 1
}

command -v node >/dev/null || missing "no node"
version=$(node --version)
version=${version#v}
((${version%%.*} >= 20)) || missing "node $version is older than 20"
if [[ $test == */browser.test.js || $test == */page.test.mjs ]]; then
  KVEVICT_CHROMIUM=$(command -v chromium || command -v chromium-browser) ||
    missing "no chromium"
  export KVEVICT_CHROMIUM
else
  [[ -d $folder/node_modules/webgpu ]] || missing "no npm package webgpu in $folder"
  ldconfig -p | grep -q 'libvulkan\.so\.1' || missing "no libvulkan.so.1"
  if [[ -z ${VK_ICD_FILENAMES:-} ]]; then
    for icd in /usr/lib/chromium/vk_swiftshader_icd.json \
      /usr/lib64/chromium-browser/vk_swiftshader_icd.json; do
      [[ -f $icd ]] && export VK_ICD_FILENAMES=$icd
    done
  fi
  [[ -n ${VK_ICD_FILENAMES:-} ]] || missing "no SwiftShader: Debian's chromium has one"
fi
exec node --test --test-reporter=spec "$test"
