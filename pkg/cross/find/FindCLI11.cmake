include(${CMAKE_CURRENT_LIST_DIR}/header_only.cmake)
kvevict_find_headers(CLI11 CLI CLI11::CLI11)
