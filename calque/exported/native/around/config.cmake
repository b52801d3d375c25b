# NAME for CMake: find_package(NAME CONFIG PATHS this/folder), then target_link_libraries(... NAME::NAME). Written by `calque build`.
if(NOT TARGET NAME::NAME)
  add_library(NAME::NAME STATIC IMPORTED)
  set_target_properties(NAME::NAME PROPERTIES
    IMPORTED_LOCATION "${CMAKE_CURRENT_LIST_DIR}/@STATIC@"
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}")
  if(UNIX AND NOT APPLE)
    find_package(Threads REQUIRED)
    set_property(TARGET NAME::NAME PROPERTY INTERFACE_LINK_LIBRARIES m Threads::Threads)
  endif()
endif()
if(NOT TARGET NAME::shared AND EXISTS "${CMAKE_CURRENT_LIST_DIR}/@SHARED@")
  add_library(NAME::shared SHARED IMPORTED)
  set_target_properties(NAME::shared PROPERTIES
    IMPORTED_LOCATION "${CMAKE_CURRENT_LIST_DIR}/@SHARED@"
    IMPORTED_NO_SONAME TRUE
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}")
endif()
