# WebAssembly with SIMD128, by Debian's clang-19 and wasi-libc; programs run under Node.
# What is built has one thread and no exceptions.
set(KVEVICT_WASM ON)
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR wasm32)
set(CMAKE_C_COMPILER clang-19)
set(CMAKE_CXX_COMPILER clang++-19)
set(CMAKE_AR llvm-ar-19)
set(CMAKE_RANLIB llvm-ranlib-19)
set(CMAKE_C_COMPILER_TARGET wasm32-wasi)
set(CMAKE_CXX_COMPILER_TARGET wasm32-wasi)
# Every engine that has SIMD has the other three.
set(CMAKE_C_FLAGS_INIT "-msimd128 -mbulk-memory -mnontrapping-fptoint -msign-ext")
set(CMAKE_CXX_FLAGS_INIT "${CMAKE_C_FLAGS_INIT} -fno-exceptions")
# The stack lies first, so that a call beyond it is a trap. The default of 64 KB is too
# little for the kernels' tiles.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,--stack-first -Wl,-z,stack-size=1048576")
set(CMAKE_CROSSCOMPILING_EMULATOR node
    ${CMAKE_CURRENT_LIST_DIR}/wasi.mjs)
include(${CMAKE_CURRENT_LIST_DIR}/cross.cmake)
