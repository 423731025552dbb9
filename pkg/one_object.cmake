# cmake -DLD=ld -DOBJCOPY=objcopy -DAR=ar -DARCHIVE=x.a -DHIGHWAY=hwy.a [-DWINDOWS=ON]
#       -P one_object.cmake
#
# Links the members of x.a and of Highway into one object whose only global names are
# kvevict_*, and makes it x.a's only member. So x.a needs nothing but the C++ runtime,
# and a program that brings another Highway does not clash with ours.
# The Windows linker cannot make one object of functions that several have, so there
# x.a gets Highway's members as they are.
if(WINDOWS)
  file(WRITE ${ARCHIVE}.mri "create ${ARCHIVE}.all\naddlib ${ARCHIVE}\naddlib ${HIGHWAY}\nsave\nend\n")
  execute_process(COMMAND ${AR} -M INPUT_FILE ${ARCHIVE}.mri COMMAND_ERROR_IS_FATAL ANY)
  file(RENAME ${ARCHIVE}.all ${ARCHIVE})
  file(REMOVE ${ARCHIVE}.mri)
  return()
endif()
set(object ${ARCHIVE}.o)
# Groups are dissolved: a group that has become local must not be exchanged for
# another object's group of the same name.
execute_process(
  COMMAND ${LD} -r --force-group-allocation --whole-archive ${ARCHIVE}
          --no-whole-archive ${HIGHWAY} -o ${object} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${OBJCOPY} --wildcard --keep-global-symbol=kvevict_* ${object}
                        COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE ${ARCHIVE})
execute_process(COMMAND ${AR} qcs ${ARCHIVE} ${object} COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE ${object})
