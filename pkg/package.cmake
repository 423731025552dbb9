# Targets package_tarball and, on Debian and its kin, package_deb: what lies in
# KVEVICT_DIST_DIR afterwards is made by pkg/package.sh.
set(KVEVICT_DIST_DIR ${PROJECT_BINARY_DIR}/dist CACHE PATH "Where packages go")

function(kvevict_add_package kind)
  add_custom_target(
    package_${kind}
    COMMAND ${PROJECT_SOURCE_DIR}/pkg/package.sh ${kind} ${PROJECT_BINARY_DIR}
            ${KVEVICT_DIST_DIR}
    VERBATIM)
  foreach(target kvevict kvevict_static kvevict_cli kvevict_pages_written)
    if(TARGET ${target})
      add_dependencies(package_${kind} ${target})
    endif()
  endforeach()
endfunction()

kvevict_add_package(tarball)
if(EXISTS /etc/debian_version AND CMAKE_LIBRARY_ARCHITECTURE)
  include(pkg/deb.cmake)
  kvevict_add_package(deb)
endif()
