# Installs the headers of include/megatron and those that they need. The caller sets MG_SOURCE_DIR,
# MG_GENERATED_DIR (of generated headers) and MG_INCLUDE_NAME, a folder below the prefix.
cmake_policy(VERSION 3.25)
include(${MG_SOURCE_DIR}/cmake/required_headers.cmake)
mg_required_headers(${MG_SOURCE_DIR} found)
foreach(header IN LISTS found)
  string(REGEX REPLACE "^include/" "" place ${header})
  cmake_path(GET place PARENT_PATH folder)
  file(INSTALL ${MG_SOURCE_DIR}/${header}
    DESTINATION ${CMAKE_INSTALL_PREFIX}/${MG_INCLUDE_NAME}/${folder})
endforeach()
file(INSTALL ${MG_GENERATED_DIR}/megatron/run/interface_hash.h
  DESTINATION ${CMAKE_INSTALL_PREFIX}/${MG_INCLUDE_NAME}/megatron/run)
