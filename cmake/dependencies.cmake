# What Debian 12 has; scripts/bootstrap.sh installs it. Each folder links what it uses.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(simdjson REQUIRED)
find_package(ZLIB REQUIRED)

# Debian's dnnl-config.cmake asks for OpenCL headers that a CPU build does not need.
find_path(DNNL_INCLUDE oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(mg_dnnl INTERFACE IMPORTED)
target_include_directories(mg_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE})
target_link_libraries(mg_dnnl INTERFACE ${DNNL_LIBRARY})

if(MG_OPENMP)
  find_package(OpenMP REQUIRED)
endif()
if(MG_TESTS)
  find_package(GTest REQUIRED)
endif()
