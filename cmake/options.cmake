# Compiler flags of every target of the project.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(mg_flags INTERFACE)
target_compile_options(mg_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror
  -march=${MG_CPU_ARCH} -ffp-contract=on)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports false positives for both in standard headers at -O2 and above.
  target_compile_options(mg_flags INTERFACE -Wno-maybe-uninitialized -Wno-restrict)
endif()
if(MG_SANITIZE)
  target_compile_options(mg_flags INTERFACE -fsanitize=${MG_SANITIZE} -fno-omit-frame-pointer -g1)
  target_link_options(mg_flags INTERFACE -fsanitize=${MG_SANITIZE})
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")
