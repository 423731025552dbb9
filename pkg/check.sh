# Sourced by ./run: what `./run check` does beyond the tests. Every step is a function
# check_NAME; all steps run, and the last line says which of them failed.

readonly check_steps=(format tests deep longest plain tidy asan tsan llama docs)

check_format() { sources | xargs clang-format --dry-run --Werror; }

# The tests include exported symbols, layout table and the header in every standard.
check_tests() {
  build_tests "$release_dir" -DKVEVICT_DEEP_TESTS=OFF
  run_tests "$release_dir" test
}

# These take too long for every day, see KVEVICT_DEEP_TESTS in tests/CMakeLists.txt.
check_deep() {
  build_tests "$release_dir" -DKVEVICT_DEEP_TESTS=ON
  run_tests "$release_dir" deep -L deep -LE longest
}

# More random cases for the kernels, and each row of the GPU's table of timings: those of the
# deep tests that continuous integration has time for.
check_kernels() {
  build_tests "$release_dir" -DKVEVICT_DEEP_TESTS=ON
  run_tests "$release_dir" kernels -R '^ptx_.*_80$|^cuda_kernels_(scores|attention|near_keys)$|^cuda_end_to_end_rows_'
}

# The few of these that take minutes each.
check_longest() {
  build_tests "$release_dir" -DKVEVICT_DEEP_TESTS=ON
  run_tests "$release_dir" longest -L longest
}

# The documentation site, strictly, with every link.
check_docs() {
  need "${docs_packages[@]}"
  pkg/docs/build.sh
}

# Without an optimizer, inline functions and variables of one name meet: each means
# one thing, and the kernels work on the baseline's target.
check_plain() {
  configure build/plain -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG='-O0 -g1' \
    -DCMAKE_CXX_FLAGS=-DHWY_COMPILE_ONLY_STATIC
  build build/plain kvevict tests/kernels/all capi_moves capi_rotate capi_score capi_select
  pkg/one_definition.sh build/plain/{core,cuda,CMakeFiles/kvevict_capi.dir}
  run_tests build/plain plain -R '^(kernels_|capi_(moves|rotate|score|select)$)'
}

# Checks what is compiled, not every header by itself; tests only meet the compiler's
# warnings. A kernel is read for one SIMD target, since its text is the same for all.
# One file at a time: clang-tidy 14 forgets va_start in the second file of a process.
check_tidy() {
  # It is configured for clang, since clang-tidy refuses options that only g++ knows.
  configure build/tidy -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++
  # Makes the kernels' text, which a source includes.
  build build/tidy cuda/kernel_programs.inc cuda/kernel_includes.inc
  # A configuration that does not parse is ignored by clang-tidy, not refused.
  [[ $(clang-tidy --list-checks) == *bugprone-* ]] || fail ".clang-tidy is unreadable"
  sources | grep -E '^(capi|core|cuda|tools)/.*\.cc$' |
    xargs -P "$jobs" -n 1 clang-tidy -p build/tidy --quiet \
      --extra-arg=-DHWY_COMPILE_ONLY_STATIC 2> >(grep -v 'warnings generated' >&2)
}

# A sanitizer's report ends the program with an error: -fno-sanitize-recover.
check_asan() {
  build_tests build/asan -DKVEVICT_SANITIZE=address,undefined
  run_tests build/asan asan -LE slow
}

# Criterion cannot start under TSan; tests/thread are plain programs.
check_tsan() {
  build_tests build/tsan -DKVEVICT_SANITIZE=thread -DKVEVICT_BUILD_TOOLS=OFF
  # libtsan of GCC 12 wants the kernel to randomize no more than 28 bits.
  if setarch -R true 2>/dev/null; then
    ctest() { setarch -R ctest "$@"; }
  fi
  run_tests build/tsan tsan
}

# The everyday tests use a pinned llama.cpp. The newest one may change: this step
# reports it and never fails.
check_llama() {
  local shared=${KVEVICT_SHARED_DIR:-../shared}
  build_release kvevict
  pkg/canary_llama.sh "$PWD/$release_dir" "$shared/models/english800k.gguf" \
    "$shared/texts/alice29.txt" || say "the newest llama.cpp is another one now"
  if command -v dotnet >/dev/null; then
    build_tests "$release_dir"
    LLamaSharpVersion='*' ctest --test-dir "$release_dir" -R csharp_llamasharp_xunit \
      --output-on-failure || say "the newest LLamaSharp is another one now"
  fi
}

# Not one of the steps, since it finds as much as it has time for: new inputs for
# KVEVICT_FUZZ_SECONDS per fuzzer. What it learns stays in build/fuzz/corpus.
check_fuzz() {
  local name status=0
  need libclang-rt-dev
  configure build/fuzz -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
    -DKVEVICT_SANITIZE=fuzzer-no-link,address,undefined
  build build/fuzz fuzz_policy fuzz_compact fuzz_sequence
  for name in policy compact sequence; do
    say "fuzzing $name"
    mkdir -p "build/fuzz/corpus/$name"
    build/fuzz/tests/fuzz/fuzz_"$name" -max_total_time="${KVEVICT_FUZZ_SECONDS:-60}" \
      -artifact_prefix=build/fuzz/ -print_final_stats=1 -verbosity=0 \
      "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name" || status=1
  done
  return "$status"
}

# Nor this, for what it installs: the WGSL kernels in Dawn, the demo page and
# transformers.js in Chromium, on the software driver for Vulkan that comes with it. The
# newest transformers.js may differ from the pinned one: that is reported and never a
# failure.
check_web() {
  local folder=$release_dir/web packages=(chromium libvulkan1) models=$release_dir/web-transformers
  command -v node >/dev/null || packages+=(nodejs)
  command -v npm >/dev/null || packages+=(npm)
  need_with_bindings "${build_packages[@]}" "${packages[@]}"
  configure "$release_dir"
  mkdir -p "$folder" "$models"
  packages=(kvevict_webgpu_native kvevict_cli)
  if has_target kvevict_web_demo; then
    packages+=(kvevict_web_demo)
  else
    say "no clang-19 for wasm32-wasi: tests of the package and the page are left out"
  fi
  build "$release_dir" "${packages[@]}"
  cp bindings/web/webgpu/test/package.json "$folder"
  npm install --prefix "$folder" --no-audit --no-fund --silent
  if has_target kvevict_transformers; then
    build "$release_dir" kvevict_transformers
    # Without scripts: the tests do not use what transformers.js runs in Node.
    cp integrations/transformers.js/test/package.json "$models"
    npm install --prefix "$models" --no-audit --no-fund --silent --ignore-scripts
    pkg/canary_transformers.sh "$PWD/$release_dir" ||
      say "the newest transformers.js is another one now"
  fi
  KVEVICT_WEB_REQUIRED=1 run_tests "$release_dir" web -L web
}

# Nor this, for the time it takes: Windows under wine and arm64 under qemu. Tests, and
# programs print what this machine's print; and what clang says of other systems.
check_cross() {
  local status=0 long_cases=$PWD/tests/cross/long_cases.txt
  need "${cross_packages[@]}"
  build_release engine_c capi_results kvevict_cli
  build_cross windows-x64
  build_cross linux-arm64
  cross_windows || status=1
  KVEVICT_TEST_LEAVE_OUT=$long_cases \
    cross_arm64 '^tools_(llama|recall_.*)$' || status=1
  [[ $(grep -o '[0-9]* left out' build/results/arm64-neon.xml |
    awk '{ n += $1 } END { print n }') == $(wc -l <"$long_cases") ]] ||
    { say "not all that $long_cases names are cases" && status=1; }
  tests/cross/clang.sh "$release_dir" freebsd || status=1
  return "$status"
}

check_wasm() {
  need_with_bindings "${build_packages[@]}"
  build_release kvevict_web engine_c
  KVEVICT_TEST_LONG=1 run_tests "$release_dir" wasm -R '^(wasm_|engine_wasm)'
}

# Also runs what computes for long on arm64.
check_cross-long() {
  need "${cross_packages[@]}"
  build_release engine_c capi_results kvevict_cli
  build_cross linux-arm64
  cross_arm64
}

cross_windows() {
  local status=0 awake
  export WINEDEBUG=-all
  # The first program starts one that serves all of them and keeps its output open.
  # So this first one has no output, and stays.
  exec {awake}> >(exec wine cmd >/dev/null 2>&1)
  wine cmd /c exit >/dev/null 2>&1 || status=1
  run_tests build/windows-x64 windows-x64 -L fast || status=1
  tests/cross/windows.sh build/windows-x64 || status=1
  tests/cross/clang.sh build/windows-x64 windows || status=1
  tests/cross/packages.sh build/windows-x64 wine || status=1
  tests/cross/compare.sh "$release_dir" build/windows-x64 all wine || status=1
  exec {awake}>&-
  return "$status"
}

# cross_arm64 [REGEX]: the tests with NEON, except those whose name matches; kernels,
# moves of rows and keep lists by the code for CPUs with vectors of 128, 256 and 512 bits: SVE2's,
# SVE's, and that for any length.
cross_arm64() {
  local status=0 vq cpu extent comparison comparisons=()
  local qemu=(qemu-aarch64 -L /usr/aarch64-linux-gnu)
  local -A target=([1]=SVE2_128 [2]=SVE_256 [4]=SVE)
  tests/cross/arm64.sh build/linux-arm64 || status=1
  tests/cross/packages.sh build/linux-arm64 "${qemu[@]}" || status=1
  QEMU_CPU=cortex-a72 run_tests build/linux-arm64 arm64-neon -L fast \
    ${1:+-E "$1"} || status=1
  for vq in 1 2 4; do
    say "qemu's CPU max,sve-max-vq=$vq"
    QEMU_CPU=max,sve-max-vq=$vq KVEVICT_TEST_TARGETS=${target[$vq]} \
      run_tests build/linux-arm64 "arm64-sve-$vq" \
      -R '^(kernels_|capi_(attend|moves|rotate|score|select)$)' || status=1
  done
  for cpu in cortex-a72 max,sve-max-vq={1,2,4}; do
    [[ $cpu == max* ]] && extent=results || extent=all
    QEMU_CPU=$cpu tests/cross/compare.sh "$release_dir" build/linux-arm64 "$extent" \
      "${qemu[@]}" &
    comparisons+=($!)
  done
  for comparison in "${comparisons[@]}"; do wait "$comparison" || status=1; done
  return "$status"
}

# Not one of the steps either: makes the present interface the golden one.
check_abi-update() {
  build_release
  KVEVICT_UPDATE_GOLDEN=1 ctest --test-dir "$release_dir" -R '^abi_(layout|symbols)$'
  if command -v swig >/dev/null && command -v gofmt >/dev/null; then
    bindings/go/generate.sh
  else
    say "without swig and gofmt what Go has of the header stays as it is"
  fi
  git diff --stat -- pkg/abi bindings/go
}

check() {
  local step failed=()
  [[ $# -gt 0 ]] || set -- "${check_steps[@]}"
  for step in "$@"; do
    declare -F "check_$step" >/dev/null || fail "no check '$step': ${check_steps[*]}"
  done
  for step in "$@"; do
    say "check $step"
    # It runs in a shell of its own, since `set -e` is off in a condition.
    if ! ./run check-step "$step"; then failed+=("$step"); fi
  done
  if [[ ${#failed[@]} -gt 0 ]]; then
    say "check FAILED: ${failed[*]}"
    return 1
  fi
  say "check passed: $*"
}
