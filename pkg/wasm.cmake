# The library for WebAssembly: `kvevict` is an archive, for tests, and `kvevict_wasm` the
# module kvevict.wasm, which bindings/web carries.
target_compile_options(kvevict_capi_static PRIVATE -Oz)
if(NOT KVEVICT_BUILD_TESTS) # a module for a page: the smallest
  target_compile_options(kvevict_capi_static PRIVATE -flto)
  target_compile_options(kvevict_core PRIVATE -flto)
endif()
add_library(kvevict STATIC $<TARGET_OBJECTS:kvevict_capi_static>
                           $<TARGET_OBJECTS:kvevict_core>)
target_link_libraries(kvevict PUBLIC hwy)
target_include_directories(kvevict PUBLIC capi/include)
target_compile_definitions(kvevict PUBLIC KVEVICT_STATIC)
add_library(kvevict_static ALIAS kvevict)

# The functions of the C API, and what callers allocate with.
file(STRINGS pkg/abi/kvevict.symbols exported)
list(TRANSFORM exported REPLACE "@@.*" "")
list(APPEND exported aligned_alloc free)
# A module has no function that the binding of the web does not call.
file(STRINGS bindings/not_wrapped.txt not_wrapped REGEX "^web ")
list(TRANSFORM not_wrapped REPLACE "^web ([^ ]+).*" "\\1")
list(REMOVE_ITEM exported ${not_wrapped})
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS bindings/not_wrapped.txt)
list(TRANSFORM exported PREPEND -Wl,--export=)
add_executable(kvevict_wasm $<TARGET_OBJECTS:kvevict_capi_static>
                            $<TARGET_OBJECTS:kvevict_core>)
target_link_libraries(kvevict_wasm PRIVATE hwy)
target_link_options(kvevict_wasm PRIVATE -mexec-model=reactor -Wl,--gc-sections,-O2
                    -Wl,--strip-all ${exported})
set_target_properties(kvevict_wasm PROPERTIES OUTPUT_NAME kvevict SUFFIX .wasm
                                              LINKER_LANGUAGE CXX)
set_property(TARGET kvevict_wasm PROPERTY LINK_DEPENDS
                                          ${PROJECT_SOURCE_DIR}/pkg/abi/kvevict.symbols)

if(KVEVICT_BUILD_TESTS)
  enable_testing()
  add_subdirectory(tests)
  add_subdirectory(bindings/examples/engine)
endif()
