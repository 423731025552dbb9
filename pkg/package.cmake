# Targets package_tarball, package_zip for Windows, and package_deb on Debian and
# its kin. pkg/package.sh makes the files in KVEVICT_DIST_DIR.
set(KVEVICT_DIST_DIR ${PROJECT_BINARY_DIR}/dist CACHE PATH "Where packages go")

function(kvevict_add_package kind)
  add_custom_target(
    package_${kind}
    COMMAND ${PROJECT_SOURCE_DIR}/pkg/package.sh ${kind} ${PROJECT_BINARY_DIR}
            ${KVEVICT_DIST_DIR} ${platform}
    VERBATIM)
  foreach(target kvevict kvevict_static kvevict_cli kvevict_pages_written)
    if(TARGET ${target})
      add_dependencies(package_${kind} ${target})
    endif()
  endforeach()
endfunction()

string(TOLOWER ${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR} platform)
if(WIN32)
  kvevict_add_package(zip)
  return()
endif()
kvevict_add_package(tarball)
if(EXISTS /etc/debian_version AND CMAKE_LIBRARY_ARCHITECTURE)
  include(pkg/deb.cmake)
  kvevict_add_package(deb)
endif()
