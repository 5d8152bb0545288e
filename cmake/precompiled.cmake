# Precompiled headers, with MG_PRECOMPILE. Tests start from GoogleTest's. With clang, which reads of
# such a file what it needs, every source starts from the headers below, in half the time; GCC would
# gain a quarter, and its builds must see where a source forgets an include.
set(MG_COMMON_HEADERS)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(MG_COMMON_HEADERS
    <algorithm> <chrono> <filesystem> <functional> <map> <memory> <mutex> <optional> <set> <span> <string>
    <string_view> <thread> <vector> <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp>)
  if(MG_PRECOMPILE)
    target_compile_options(mg_flags INTERFACE
      "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
    # As CMake's own, without a second option that has the folder's name and no effect.
    set(CMAKE_CXX_COMPILE_OPTIONS_USE_PCH -Xclang -include-pch -Xclang <PCH_FILE>)
  endif()
endif()

# clang's precompiled header has the folder's name, so clones would share no objects: ccache compares
# this sum of what is precompiled in its place. It is made anew when CMake configures the build.
function(mg_write_sum name)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${name}.dir)
  file(REMOVE ${folder}/cmake_pch.hxx.pch.sum)  # without it ccache compares the header itself
  list(TRANSFORM ARGN PREPEND "#include ")
  list(JOIN ARGN "\n" text)
  file(WRITE ${folder}/headers.cpp "${text}\n")
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS} -std=c++20 -march=${MG_MARCH}")
  if(MG_SANITIZE)
    list(APPEND flags -fsanitize=${MG_SANITIZE})
  endif()
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} ${flags} -E -P ${folder}/headers.cpp
    OUTPUT_FILE ${folder}/headers.ii ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0)
    file(SHA256 ${folder}/headers.ii sum)
    file(WRITE ${folder}/cmake_pch.hxx.pch.sum ${sum})
  endif()
endfunction()

# mg_precompile(mg_headers LIBS fmt::fmt HEADERS <vector> ...): an object library whose headers other
# targets take over with "REUSE_FROM mg_headers". They must define its macros, and have its options.
function(mg_precompile name)
  cmake_parse_arguments(PRE "" "" "LIBS;HEADERS" ${ARGN})
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp)
  target_link_libraries(${name} PRIVATE mg_flags ${PRE_LIBS})
  target_precompile_headers(${name} PRIVATE ${PRE_HEADERS})
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    mg_write_sum(${name} ${PRE_HEADERS})
  endif()
endfunction()

if(MG_PRECOMPILE AND MG_COMMON_HEADERS)
  # What mg_core gives all other libraries.
  mg_precompile(mg_headers HEADERS ${MG_COMMON_HEADERS}
    LIBS fmt::fmt nlohmann_json::nlohmann_json $<$<BOOL:${MG_OPENMP}>:OpenMP::OpenMP_CXX>)
  set_target_properties(mg_headers PROPERTIES POSITION_INDEPENDENT_CODE ON)
endif()
