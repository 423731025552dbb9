# Provides the target `hwy`, Highway 1.2 or later, static and hidden, from the first of
#   1. the target `hwy` of the project that we are a part of;
#   2. -DKVEVICT_HIGHWAY_SOURCE=dir, an unpacked source tree (./run fetches Debian's);
#   3. find_package(hwy 1.2);
#   4. the 1.2.0 release, downloaded and checked by hash.
set(KVEVICT_HIGHWAY_SOURCE "" CACHE PATH "Highway source tree, 1.2 or later")
# Each target costs its share of the build and of the library. These are left out:
# targets that add what no kernel uses (bf16 and f16 arithmetic, AES, arm64's
# products of bytes), those of x86-64 before AVX2 except the baseline, and SVE2 with
# any length of vectors. A file that multiplies bytes defines HWY_WANT_AVX3_DL.
set(without "HWY_SSSE3|HWY_SSE4|HWY_AVX3_ZEN4|HWY_AVX3_SPR")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(without "HWY_NEON|HWY_NEON_BF16|HWY_SVE2")
endif()
set(KVEVICT_SIMD_WITHOUT "${without}" CACHE STRING
    "SIMD targets to leave out, as \"HWY_SSSE3|HWY_SSE4\"")

if(TARGET hwy)
  get_target_property(hwy_type hwy TYPE)
  if(NOT hwy_type STREQUAL STATIC_LIBRARY)
    message(FATAL_ERROR "The target hwy is a ${hwy_type}; kvevict needs a STATIC_LIBRARY "
                        "to carry in itself (HWY_FORCE_STATIC_LIBS=ON)")
  endif()
  message(STATUS "Highway: the target hwy that is here already")
  return()
endif()

if(NOT KVEVICT_HIGHWAY_SOURCE)
  find_package(hwy 1.2 QUIET)
endif()

set(KVEVICT_HIGHWAY_INSTALLED OFF)
if(hwy_FOUND)
  get_target_property(hwy_type hwy::hwy TYPE)
  if(hwy_type STREQUAL "STATIC_LIBRARY")
    set(KVEVICT_HIGHWAY_INSTALLED ON)
  else()
    message(STATUS "Highway ${hwy_VERSION} is installed, but not as a static library")
  endif()
endif()

if(KVEVICT_HIGHWAY_INSTALLED)
  add_library(hwy ALIAS hwy::hwy)
  message(STATUS "Highway ${hwy_VERSION}: installed")
else()
  foreach(part TESTS CONTRIB EXAMPLES INSTALL)
    set(HWY_ENABLE_${part} OFF CACHE BOOL "")
  endforeach()
  set(HWY_FORCE_STATIC_LIBS ON CACHE BOOL "")
  if(KVEVICT_HIGHWAY_SOURCE)
    get_filename_component(KVEVICT_HIGHWAY_SOURCE "${KVEVICT_HIGHWAY_SOURCE}"
                           ABSOLUTE BASE_DIR "${CMAKE_BINARY_DIR}")
    add_subdirectory("${KVEVICT_HIGHWAY_SOURCE}" highway EXCLUDE_FROM_ALL)
    message(STATUS "Highway: source in ${KVEVICT_HIGHWAY_SOURCE}")
  else()
    include(FetchContent)
    FetchContent_Declare(
      highway
      URL https://github.com/google/highway/archive/refs/tags/1.2.0.tar.gz
      URL_HASH
        SHA256=7e0be78b8318e8bdbf6fa545d2ecb4c90f947df03f7aadc42c1967f019e63343)
    FetchContent_GetProperties(highway)
    if(NOT highway_POPULATED)
      FetchContent_Populate(highway)
      add_subdirectory(${highway_SOURCE_DIR} ${highway_BINARY_DIR}
                       EXCLUDE_FROM_ALL)
    endif()
    message(STATUS "Highway 1.2.0: downloaded")
  endif()
  if(KVEVICT_SIMD_WITHOUT)
    target_compile_definitions(hwy PUBLIC "HWY_DISABLED_TARGETS=(${KVEVICT_SIMD_WITHOUT})")
  endif()
  # What measures and prints is not used here.
  get_target_property(highway_sources hwy SOURCES)
  list(FILTER highway_sources EXCLUDE REGEX "/(nanobenchmark|per_target|print|timer)[.]cc$")
  set_target_properties(hwy PROPERTIES SOURCES "${highway_sources}")
  # Warnings in its headers are not ours.
  get_target_property(highway_includes hwy INTERFACE_INCLUDE_DIRECTORIES)
  set_target_properties(hwy PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES
                                       "${highway_includes}")
endif()
