# Compiler flags of every target of the project.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Objects are cached by their content, not by the place of the tree, so clones and worktrees share
# them. With precompiled headers ccache needs these permissions to keep objects, and reads a sum of
# theirs if there is one (cmake/precompiled.cmake).
find_program(CCACHE ccache)
if(CCACHE)
  set(MG_CCACHE ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=true
    CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_PCH_EXTSUM=true ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${MG_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${MG_CCACHE})
endif()

set(MG_WARNINGS -Wall -Wextra -Wshadow -Wconversion)
# Warnings are errors with the compilers that the project is tested with; others may know further ones.
if("${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" MATCHES "^(GNU 12|Clang 14)\\.")
  list(APPEND MG_WARNINGS -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports false positives for both in standard headers at -O2 and above.
  list(APPEND MG_WARNINGS -Wno-maybe-uninitialized -Wno-restrict)
elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # A loop with "omp simd" that clang cannot vectorise is slower, not wrong.
  list(APPEND MG_WARNINGS -Wno-pass-failed)
endif()

# The sources of a folder that are compiled as one share their headers, which take more time than
# they do. Names in anonymous namespaces are therefore unique in their folder.
if(MG_UNITY)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)
  # A name of another source is no mistake; GCC takes the sources for headers.
  list(APPEND MG_WARNINGS -Wno-shadow $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()

# Portable: everything for processors with AVX2, the CPU kernels also for later ones
# (cmake/cpu_variants.cmake).
set(MG_MARCH ${MG_CPU_ARCH})
if(MG_CPU_ARCH STREQUAL "portable")
  set(MG_MARCH x86-64-v3)
endif()

add_library(mg_flags INTERFACE)
target_compile_options(mg_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${MG_WARNINGS};-Wpedantic;-march=${MG_MARCH};-ffp-contract=$<IF:$<BOOL:$<TARGET_PROPERTY:MG_SEPARATE_ROUNDING>>,off,on>>")
if(MG_SANITIZE)
  # Without checks that the address sanitizer covers or that more than double the time to compile.
  target_compile_options(mg_flags INTERFACE
    -fsanitize=${MG_SANITIZE} -fno-sanitize=null,vptr,object-size -fno-omit-frame-pointer -g1)
  target_link_options(mg_flags INTERFACE -fsanitize=${MG_SANITIZE})
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")

# The module of Python, a shared library, has the program's objects (mg_library()). No other library
# replaces a function of theirs, so they inline what they call.
target_compile_options(mg_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-semantic-interposition>)

if(MG_CUDA)
  if(MG_SANITIZE)
    message(FATAL_ERROR "MG_SANITIZE works on CPU builds only: clear it or MG_CUDA")
  endif()
  add_compile_definitions(MG_CUDA_BUILD)
  # The host half of a .cu file keeps the warnings, but not -Wpedantic (nvcc's own output has line
  # markers) nor -march (nvcc does not read every vector header of the host compiler).
  list(JOIN MG_WARNINGS "," MG_CUDA_HOST_WARNINGS)
  set(MG_CUDA_FLAGS --expt-relaxed-constexpr -Werror=all-warnings
    -Xcompiler=${MG_CUDA_HOST_WARNINGS})
  target_compile_options(mg_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${MG_CUDA_FLAGS}>")
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
  set(CMAKE_CUDA_FLAGS_DEBUG "-O0 -g -lineinfo")
endif()
