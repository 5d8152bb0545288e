# Installs include/megatron/megatron.h and every header of the project that it includes, directly or
# not. The caller sets MG_SOURCE_DIR and MG_INCLUDE_NAME, a folder below the prefix.
cmake_policy(VERSION 3.25)
set(todo include/megatron/megatron.h)
set(found)
while(todo)
  list(POP_FRONT todo header)
  if(header IN_LIST found)
    continue()
  endif()
  list(APPEND found ${header})
  file(STRINGS ${MG_SOURCE_DIR}/${header} lines REGEX "^#include \"megatron/")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" path "${line}")
    list(APPEND todo ${path})
  endforeach()
endwhile()

foreach(header IN LISTS found)
  string(REGEX REPLACE "^include/" "" place ${header})
  cmake_path(GET place PARENT_PATH folder)
  file(INSTALL ${MG_SOURCE_DIR}/${header}
    DESTINATION ${CMAKE_INSTALL_PREFIX}/${MG_INCLUDE_NAME}/${folder})
endforeach()
