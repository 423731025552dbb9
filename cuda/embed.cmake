# cmake -DOUT=file.inc "-DFILES=a.cu;b.cuh" [-DKERNELS=kernels.inc] -P embed.cmake
# Writes the texts of FILES as rows of SourceText, included by kernel_text.cc. Lines of
# comment become empty and lines lose their indentation, so that the library is smaller
# and NVRTC's messages still have the line numbers of the files.
# With KERNELS also lists the kernels that they define: each file is a module,
# and each KV_KERNEL(entry, ...) an entry point of it, in every variant.
set(rows "")
set(kernels "")
foreach(file IN LISTS FILES)
  # As others include it.
  string(REGEX REPLACE ".*/cuda/kernels/" "" name "${file}")
  string(REGEX REPLACE ".*/core/" "core/" name "${name}")
  file(READ "${file}" text)
  string(FIND "${text}" ")kvevict\"" end)
  if(NOT end EQUAL -1)
    message(FATAL_ERROR "${file} holds the end of a raw string")
  endif()
  string(REGEX REPLACE "\n +" "\n" stripped "\n${text}")
  string(REGEX REPLACE "\n//[^\n]*" "\n" stripped "${stripped}")
  string(SUBSTRING "${stripped}" 1 -1 stripped)
  string(APPEND rows "{\"${name}\", R\"kvevict(${stripped})kvevict\"},\n")
  if(KERNELS)
    get_filename_component(module "${file}" NAME_WE)
    string(APPEND kernels "KVEVICT_MODULE(${module})\n")
    file(STRINGS "${file}" entries REGEX "^KV_KERNEL\\(")
    if(NOT entries)
      message(FATAL_ERROR "${file} has no KV_KERNEL(")
    endif()
    foreach(entry IN LISTS entries)
      string(REGEX REPLACE "^KV_KERNEL\\(([a-z0-9_]+),.*" "\\1" entry "${entry}")
      string(APPEND kernels "KVEVICT_KERNEL(${module}, ${entry})\n")
    endforeach()
  endif()
endforeach()
file(WRITE "${OUT}" "${rows}")
if(KERNELS)
  string(APPEND kernels "#undef KVEVICT_MODULE\n#undef KVEVICT_KERNEL\n")
  # The host's code is compiled anew only if a kernel came or went.
  file(CONFIGURE OUTPUT "${KERNELS}" CONTENT "${kernels}" @ONLY)
endif()
