# kvevict_find_headers(PACKAGE FOLDER target): the building machine's headers in a
# folder of their own, since those beside them are of its C library.
macro(kvevict_find_headers package folder target)
  find_path(KVEVICT_${package}_HEADERS ${folder} PATHS /usr/local/include /usr/include
            NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
  set(${package}_FOUND OFF)
  if(KVEVICT_${package}_HEADERS)
    set(${package}_FOUND ON)
    set(alone ${CMAKE_BINARY_DIR}/headers)
    file(MAKE_DIRECTORY ${alone})
    file(CREATE_LINK ${KVEVICT_${package}_HEADERS}/${folder} ${alone}/${folder}
         SYMBOLIC)
    if(NOT TARGET ${target})
      add_library(${target} INTERFACE IMPORTED)
      set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${alone})
    endif()
  endif()
endmacro()
