# cmake -DOUT=file.cc "-DFILES=a.cu;b.cuh" -P embed.cmake
# Writes the texts of FILES as rows of SourceText, included by kernel_text.cc.
set(rows "")
foreach(file IN LISTS FILES)
  # As others include it.
  string(REGEX REPLACE ".*/cuda/kernels/" "" name "${file}")
  string(REGEX REPLACE ".*/core/" "core/" name "${name}")
  file(READ "${file}" text)
  string(FIND "${text}" ")kvevict\"" end)
  if(NOT end EQUAL -1)
    message(FATAL_ERROR "${file} holds the end of a raw string")
  endif()
  string(APPEND rows "{\"${name}\", R\"kvevict(${text})kvevict\"},\n")
endforeach()
file(WRITE "${OUT}" "${rows}")
