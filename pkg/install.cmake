# The files of `cmake --install`. Every path in them is relative, so the tree can move.

# Our licence, and those of what is compiled into the library and the program.
file(READ LICENSE license)
string(REGEX REPLACE "^.*\n(Permission is hereby)" "\\1" license "${license}")
string(STRIP "${license}" license)
string(REPLACE "\n\n" "\n.\n" license "${license}")
string(REPLACE "\n" "\n " license " ${license}")
configure_file(pkg/copyright.in ${PROJECT_BINARY_DIR}/copyright @ONLY)

if(TARGET kvevict_cli)
  # The program finds the library it was installed with, wherever that is.
  file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR}
       ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(kvevict_cli PROPERTIES INSTALL_RPATH
                                               "$ORIGIN/${bin_to_lib}")
endif()

# Before 1.0 a minor version may break its users.
set(compatibility SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatibility SameMinorVersion)
endif()

set(KVEVICT_PRIVATE_LIBRARIES "-lstdc++ -lm")
if(WIN32)
  string(APPEND KVEVICT_PRIVATE_LIBRARIES " -lwinpthread -lssp")
endif()

# kvevict_install(PREFIX LIBDIR RUNTIME DEVEL PROGRAM [EXCLUDE_FROM_ALL]): the files for
# a library folder, as three components. It is called again for every other library
# folder. PREFIX is what pkg-config prints, or empty: wherever the tree lies.
function(kvevict_install prefix libdir runtime devel program)
  set(cmake_package_dir ${libdir}/cmake/kvevict)
  set(generated_dir ${PROJECT_BINARY_DIR}/install/${devel})
  set(export kvevict-targets-${devel})

  install(TARGETS kvevict EXPORT ${export}
          RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${runtime} ${ARGN}
          LIBRARY DESTINATION ${libdir} COMPONENT ${runtime}
                  NAMELINK_COMPONENT ${devel} ${ARGN}
          ARCHIVE DESTINATION ${libdir} COMPONENT ${devel} ${ARGN})
  if(KVEVICT_DLLTOOL)
    install(FILES ${PROJECT_BINARY_DIR}/kvevict.lib
            DESTINATION ${libdir} COMPONENT ${devel} ${ARGN})
  endif()
  install(TARGETS kvevict_static EXPORT ${export}
          ARCHIVE DESTINATION ${libdir} COMPONENT ${devel} ${ARGN})
  install(DIRECTORY capi/include/kvevict DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          COMPONENT ${devel} ${ARGN})
  if(TARGET kvevict_cli)
    install(TARGETS kvevict_cli
            RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${program} ${ARGN})
  endif()
  if(TARGET kvevict_pages_written)
    install(FILES ${PROJECT_BINARY_DIR}/tools/kvevict.1
            DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${program} ${ARGN})
    install(FILES ${PROJECT_BINARY_DIR}/tools/kvevict.bash
            DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
            RENAME kvevict COMPONENT ${program} ${ARGN})
  endif()

  install(EXPORT ${export} NAMESPACE kvevict:: FILE kvevict-targets.cmake
          DESTINATION ${cmake_package_dir} COMPONENT ${devel} ${ARGN})
  configure_package_config_file(
    pkg/kvevict-config.cmake.in ${generated_dir}/kvevict-config.cmake
    INSTALL_DESTINATION ${cmake_package_dir})
  write_basic_package_version_file(${generated_dir}/kvevict-config-version.cmake
                                   COMPATIBILITY ${compatibility})
  install(FILES ${generated_dir}/kvevict-config.cmake
                ${generated_dir}/kvevict-config-version.cmake
          DESTINATION ${cmake_package_dir} COMPONENT ${devel} ${ARGN})

  if(NOT prefix)
    get_filename_component(full_libdir ${libdir} ABSOLUTE
                           BASE_DIR ${CMAKE_INSTALL_PREFIX})
    file(RELATIVE_PATH up ${full_libdir}/pkgconfig ${CMAKE_INSTALL_PREFIX})
    set(prefix "\${pcfiledir}/${up}")
  endif()
  configure_file(pkg/kvevict.pc.in ${generated_dir}/kvevict.pc @ONLY)
  install(FILES ${generated_dir}/kvevict.pc
          DESTINATION ${libdir}/pkgconfig COMPONENT ${devel} ${ARGN})
endfunction()

kvevict_install("" ${CMAKE_INSTALL_LIBDIR} runtime devel program)
install(FILES LICENSE ${PROJECT_BINARY_DIR}/copyright
        DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/kvevict COMPONENT runtime)
install(DIRECTORY ${PROJECT_BINARY_DIR}/pages/
        DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/kvevict COMPONENT devel)

if(PROJECT_IS_TOP_LEVEL AND NOT KVEVICT_SANITIZE)
  include(pkg/package.cmake)
endif()
