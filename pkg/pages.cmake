# Copies README.md and docs/ for packages to ${PROJECT_BINARY_DIR}/pages. Links to
# what packages leave out lead to the repository.
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
