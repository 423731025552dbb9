# cmake -DAR=.. -DARCHIVE=a.a -DADD=b.a -P merge_archive.cmake: appends b's members to a.
file(WRITE ${ARCHIVE}.mri "open ${ARCHIVE}\naddlib ${ADD}\nsave\nend\n")
execute_process(COMMAND ${AR} -M INPUT_FILE ${ARCHIVE}.mri
                COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE ${ARCHIVE}.mri)
