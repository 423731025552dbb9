# What `cmake --install` writes; every path in it is relative, so the tree can move.
set(cmake_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvevict)

install(TARGETS kvevict kvevict_static EXPORT kvevict-targets)
install(FILES capi/include/kvevict/kvevict.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvevict)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET kvevict_cli)
  # The program finds the library it was installed with, wherever that is.
  file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR}
       ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(kvevict_cli PROPERTIES INSTALL_RPATH
                                               "$ORIGIN/${bin_to_lib}")
  install(TARGETS kvevict_cli)
endif()

install(EXPORT kvevict-targets NAMESPACE kvevict:: DESTINATION ${cmake_package_dir})
configure_package_config_file(
  pkg/kvevict-config.cmake.in ${PROJECT_BINARY_DIR}/kvevict-config.cmake
  INSTALL_DESTINATION ${cmake_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvevict-config-version.cmake
                                 COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvevict-config.cmake
              ${PROJECT_BINARY_DIR}/kvevict-config-version.cmake
        DESTINATION ${cmake_package_dir})

file(RELATIVE_PATH pkgconfig_to_prefix
     ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(pkg/kvevict.pc.in ${PROJECT_BINARY_DIR}/kvevict.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvevict.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
