# README.md and docs/ with its pictures, as packages carry them, in ${PROJECT_BINARY_DIR}/pages: links to what
# packages leave out lead to the repository.
set(KVEVICT_REPOSITORY_URL "https://github.com/kvevict/kvevict" CACHE STRING
    "Where packages say that their source is")
file(GLOB_RECURSE pages RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS docs/*.md)
list(APPEND pages README.md)
foreach(page IN LISTS pages)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page})
  file(READ ${page} text)
  string(REGEX REPLACE "\\]\\((\\.\\./)*((bindings|capi|tests|integrations)/[^)]*|CONTRIBUTING.md)\\)"
                       "](${KVEVICT_REPOSITORY_URL}/blob/main/\\2)" text "${text}")
  file(WRITE ${PROJECT_BINARY_DIR}/pages/${page} "${text}")
endforeach()
file(GLOB pictures CONFIGURE_DEPENDS docs/*.svg)
file(COPY ${pictures} DESTINATION ${PROJECT_BINARY_DIR}/pages/docs)
