# Finds llama.cpp in the folder KVEVICT_LLAMA_DIR: a prefix where it was installed, or
# its source tree with a build in build/. Sets KVEVICT_LLAMA_INCLUDES (folders),
# KVEVICT_LLAMA_LIBRARY (libllama) and KVEVICT_GGML_LIBRARIES.
set(KVEVICT_LLAMA_INCLUDES)
foreach(folder include ggml/include)
  if(EXISTS ${KVEVICT_LLAMA_DIR}/${folder})
    list(APPEND KVEVICT_LLAMA_INCLUDES ${KVEVICT_LLAMA_DIR}/${folder})
  endif()
endforeach()
set(KVEVICT_LLAMA_LIBRARY)
set(KVEVICT_GGML_LIBRARIES)
foreach(folder lib/${CMAKE_LIBRARY_ARCHITECTURE} lib lib64 build/bin)
  file(GLOB libraries ${KVEVICT_LLAMA_DIR}/${folder}/libllama.*so*)
  if(libraries)
    list(GET libraries 0 KVEVICT_LLAMA_LIBRARY)
    file(GLOB KVEVICT_GGML_LIBRARIES ${KVEVICT_LLAMA_DIR}/${folder}/libggml.*so*
         ${KVEVICT_LLAMA_DIR}/${folder}/libggml-base.*so*)
    break()
  endif()
endforeach()
find_file(kvevict_llama_header llama.h PATHS ${KVEVICT_LLAMA_INCLUDES} NO_DEFAULT_PATH NO_CACHE)
find_file(kvevict_ggml_header ggml.h PATHS ${KVEVICT_LLAMA_INCLUDES} NO_DEFAULT_PATH NO_CACHE)
if(NOT kvevict_llama_header OR NOT kvevict_ggml_header OR NOT KVEVICT_LLAMA_LIBRARY
   OR NOT KVEVICT_GGML_LIBRARIES)
  message(
    FATAL_ERROR
      "KVEVICT_LLAMA_DIR=${KVEVICT_LLAMA_DIR}: it needs llama.h and ggml.h in include/ "
      "(or ggml/include/), and shared libraries libllama and libggml in lib/, lib64/, "
      "lib/${CMAKE_LIBRARY_ARCHITECTURE}/ or build/bin/")
endif()
