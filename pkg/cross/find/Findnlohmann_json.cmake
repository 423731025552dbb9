include(${CMAKE_CURRENT_LIST_DIR}/header_only.cmake)
kvevict_find_headers(nlohmann_json nlohmann nlohmann_json::nlohmann_json)
