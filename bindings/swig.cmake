# cmake -DSWIG=swig -DARGS=... -DOUT=dir -DROOT=dir -P swig.cmake: generates one
# language's files, and fails if a type has no typemap.
file(REMOVE_RECURSE ${OUT})
file(MAKE_DIRECTORY ${OUT})
execute_process(
  COMMAND ${SWIG} ${ARGS} -Wall -Werror -Ibindings -Icapi/include -outdir ${OUT} -o
          ${OUT}/wrap.c bindings/kvevict.i
  WORKING_DIRECTORY ${ROOT} COMMAND_ERROR_IS_FATAL ANY)
file(GLOB untyped RELATIVE ${OUT} ${OUT}/SWIGTYPE_*)
if(untyped)
  message(FATAL_ERROR "types without a typemap: ${untyped}")
endif()
