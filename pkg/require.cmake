# kvevict_require(OPTION package...): finds what a part of the build needs besides a
# compiler and Highway, or says how to do without that part. `criterion` is found by
# pkg-config. Who asks for fmt gets the target kvevict_fmt, see pkg/fmt.cc.
set(kvevict_debian_names fmt=libfmt-dev nlohmann_json=nlohmann-json3-dev
                         CLI11=libcli11-dev criterion=libcriterion-dev PkgConfig=pkg-config)

function(kvevict_require option)
  set(missing)
  foreach(package IN LISTS ARGN)
    if(NOT package STREQUAL criterion)
      find_package(${package} QUIET)
    elseif(PkgConfig_FOUND)
      pkg_check_modules(criterion QUIET IMPORTED_TARGET criterion)
    endif()
    if(NOT ${package}_FOUND)
      set(name ${kvevict_debian_names})
      list(FILTER name INCLUDE REGEX "^${package}=")
      string(REGEX REPLACE ".*=" " (Debian: " name "${name}")
      list(APPEND missing "${package}${name})")
    endif()
  endforeach()
  if(missing)
    list(JOIN missing ", " missing)
    message(FATAL_ERROR "Not found: ${missing}. -D${option}=OFF does without.")
  endif()
  if(fmt IN_LIST ARGN AND NOT TARGET kvevict_fmt)
    add_library(kvevict_fmt STATIC ${PROJECT_SOURCE_DIR}/pkg/fmt.cc)
    target_include_directories(kvevict_fmt SYSTEM PUBLIC
      $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
    kvevict_optimize_less(kvevict_fmt)
  endif()
endfunction()
