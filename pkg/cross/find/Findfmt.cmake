include(${CMAKE_CURRENT_LIST_DIR}/header_only.cmake)
kvevict_find_headers(fmt fmt fmt::fmt-header-only)
if(fmt_FOUND)
  set_property(TARGET fmt::fmt-header-only PROPERTY INTERFACE_COMPILE_DEFINITIONS
                                                    FMT_HEADER_ONLY=1)
endif()
