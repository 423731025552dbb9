# Debian packages, one per component and named like it:
#   libkvevictN      the shared library
#   libkvevict-dev   header, static library, pkg-config file, CMake package and docs
#   kvevict          the program
set(deb_runtime libkvevict${KVEVICT_ABI_VERSION})
set(deb_devel libkvevict-dev)
set(deb_program kvevict)
set(CPACK_COMPONENTS_ALL ${deb_runtime} ${deb_devel})
if(TARGET kvevict_cli)
  list(APPEND CPACK_COMPONENTS_ALL ${deb_program})
endif()

# ---- Files ---------------------------------------------------------------------

# pkg-config leaves the system's own folders out only if they are named plainly.
kvevict_install(/usr lib/${CMAKE_LIBRARY_ARCHITECTURE} ${deb_runtime} ${deb_devel}
                ${deb_program} EXCLUDE_FROM_ALL)
install(DIRECTORY ${PROJECT_BINARY_DIR}/pages/ DESTINATION share/doc/${deb_devel}
        COMPONENT ${deb_devel} EXCLUDE_FROM_ALL)
if(TARGET kvevict_cli)
  # The library lies where the dynamic linker looks anyway.
  install(
    CODE "file(RPATH_REMOVE FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/kvevict\")"
    COMPONENT ${deb_program} EXCLUDE_FROM_ALL)
endif()

set(deb_maintainer "kvevict developers <kvevict@users.noreply.github.com>")
set(deb_revision 1)
set(deb_version ${PROJECT_VERSION}-${deb_revision})
foreach(package IN LISTS CPACK_COMPONENTS_ALL)
  set(script ${PROJECT_BINARY_DIR}/install/${package}-docs.cmake)
  configure_file(pkg/deb_docs.cmake.in ${script} @ONLY)
  install(SCRIPT ${script} COMPONENT ${package} EXCLUDE_FROM_ALL)
endforeach()

# ---- Control fields ------------------------------------------------------------

# describe(PACKAGE SECTION CONTENT)
macro(describe package section content)
  string(TOUPPER ${package} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${upper}_DESCRIPTION
      "A library for authors of LLM inference engines. It scores the tokens of a KV
cache, selects those that fit a budget and compacts the survivors in place, in
the layout the engine already has, in host memory or on a CUDA device.
.
This package holds ${content}.")
  set(CPACK_DEBIAN_${upper}_PACKAGE_SHLIBDEPS ON)
endmacro()

describe(${deb_runtime} libs "the shared library")
describe(${deb_devel} libdevel
         "the header, the static library, the build files and the documentation")
describe(${deb_program} utils "the program kvevict, which shows what eviction does")

string(TOUPPER ${deb_devel} upper)
set(CPACK_DEBIAN_${upper}_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${deb_runtime} (= ${deb_version})")
string(TOUPPER ${deb_program} upper)
set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${deb_runtime} (= ${deb_version})")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
if(CMAKE_CROSSCOMPILING)
  # dpkg-shlibdeps would name the packages of the cross compiler.
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
  foreach(package ${deb_runtime} ${deb_program})
    string(TOUPPER ${package} upper)
    set(CPACK_DEBIAN_${upper}_PACKAGE_SHLIBDEPS OFF)
    foreach(needed "libc6 (>= 2.34)" "libgcc-s1 (>= 3.5)" "libstdc++6 (>= 12)")
      if(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS)
        string(APPEND CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS ", ")
      endif()
      string(APPEND CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${needed}")
    endforeach()
  endforeach()
endif()

# Debian wants the trigger; CPack adds scripts that call ldconfig by itself.
set(deb_triggers ${PROJECT_BINARY_DIR}/install/triggers)
file(WRITE ${deb_triggers} "activate-noawait ldconfig\n")
string(TOUPPER ${deb_runtime} upper)
set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA ${deb_triggers})
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")

set(CPACK_GENERATOR DEB)
set(CPACK_SOURCE_GENERATOR "")
set(CPACK_PACKAGE_NAME kvevict)
set(CPACK_PACKAGE_VENDOR kvevict)
set(CPACK_PACKAGE_CONTACT "${deb_maintainer}")
set(CPACK_DEBIAN_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_DEBIAN_PACKAGE_RELEASE ${deb_revision})
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
    WORLD_EXECUTE)
include(CPack)
