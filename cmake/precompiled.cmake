# Precompiled headers, with MG_PRECOMPILE. Tests start from GoogleTest's. With clang, which reads of
# such a file what it needs, every source starts from the headers below, in half the time; GCC would
# gain a quarter, and its builds must see where a source forgets an include.
set(MG_COMMON_HEADERS)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(MG_COMMON_HEADERS
    <algorithm> <chrono> <filesystem> <functional> <map> <memory> <mutex> <optional> <set> <span> <string>
    <string_view> <thread> <vector> <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp>)
  # ccache compares a precompiled header's bytes.
  if(MG_PRECOMPILE)
    target_compile_options(mg_flags INTERFACE
      "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
  endif()
endif()

# mg_precompile(mg_headers LIBS fmt::fmt HEADERS <vector> ...): an object library whose headers other
# targets take over with "REUSE_FROM mg_headers". They must define its macros, and have its options.
function(mg_precompile name)
  cmake_parse_arguments(PRE "" "" "LIBS;HEADERS" ${ARGN})
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp)
  target_link_libraries(${name} PRIVATE mg_flags ${PRE_LIBS})
  target_precompile_headers(${name} PRIVATE ${PRE_HEADERS})
endfunction()

if(MG_PRECOMPILE AND MG_COMMON_HEADERS)
  # What mg_core gives all other libraries.
  mg_precompile(mg_headers HEADERS ${MG_COMMON_HEADERS}
    LIBS fmt::fmt spdlog::spdlog nlohmann_json::nlohmann_json $<$<BOOL:${MG_OPENMP}>:OpenMP::OpenMP_CXX>)
endif()
