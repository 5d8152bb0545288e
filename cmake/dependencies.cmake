# Packages of Debian 12, installed by scripts/bootstrap.sh. Each folder links what it uses.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(simdjson REQUIRED)
find_package(ZLIB REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)

# Of a part: without the package, its option says so.
macro(mg_find_library part variable name)
  find_library(${variable} ${name})
  if(NOT ${variable})
    message(FATAL_ERROR "MG_${part} is on but lib${name} was not found: run scripts/bootstrap.sh, or configure with "
      "-DMG_${part}=OFF")
  endif()
endmacro()
if(MG_LZMA)
  find_package(LibLZMA REQUIRED)
endif()
if(MG_SNAPPY)
  mg_find_library(SNAPPY SNAPPY_LIBRARY snappy)
endif()
if(MG_ZSTD)
  mg_find_library(ZSTD ZSTD_LIBRARY zstd)
endif()
if(MG_YAML AND MG_ACCELERATE)
  find_package(yaml-cpp REQUIRED)
endif()
if(MG_MPI)
  # Only the C interface is used: newer versions of Open MPI lack the C++ library.
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI REQUIRED COMPONENTS CXX)
  add_library(mg_mpi INTERFACE IMPORTED)
  target_include_directories(mg_mpi SYSTEM INTERFACE ${MPI_CXX_INCLUDE_DIRS})
  target_compile_definitions(mg_mpi INTERFACE ${MPI_CXX_COMPILE_DEFINITIONS})
  if(MPI_mpi_LIBRARY)
    target_link_libraries(mg_mpi INTERFACE ${MPI_mpi_LIBRARY})
  else()
    target_link_libraries(mg_mpi INTERFACE MPI::MPI_CXX)
  endif()
endif()

# Debian's compiled cpp-httplib. Its header leaves TLS and compression out unless these macros say as
# the library was built: the layout of its classes depends on them.
if(MG_SERVER)
  find_path(HTTPLIB_INCLUDE httplib.h REQUIRED)
  mg_find_library(SERVER HTTPLIB_LIBRARY cpp-httplib)
  add_library(mg_httplib INTERFACE IMPORTED)
  target_include_directories(mg_httplib SYSTEM INTERFACE ${HTTPLIB_INCLUDE})
  target_compile_definitions(mg_httplib INTERFACE
    CPPHTTPLIB_OPENSSL_SUPPORT CPPHTTPLIB_ZLIB_SUPPORT CPPHTTPLIB_BROTLI_SUPPORT)
  target_link_libraries(mg_httplib INTERFACE ${HTTPLIB_LIBRARY} Threads::Threads)
endif()

# Debian's dnnl-config.cmake asks for OpenCL headers that a CPU build does not need.
find_path(DNNL_INCLUDE oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(mg_dnnl INTERFACE IMPORTED)
target_include_directories(mg_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE})
target_link_libraries(mg_dnnl INTERFACE ${DNNL_LIBRARY})

if(MG_OPENMP OR MG_RETRO)
  find_package(OpenMP REQUIRED)
endif()

# HDF5 is not linked but loaded at first use (annex/retro/data/hdf5_file.cpp): it needs 35 further
# libraries.
if(MG_RETRO)
  find_path(HDF5_INCLUDE hdf5.h PATH_SUFFIXES hdf5/serial)
  find_library(HDF5_LIBRARY NAMES hdf5_serial hdf5)
  if(NOT HDF5_INCLUDE OR NOT HDF5_LIBRARY)
    message(FATAL_ERROR "MG_RETRO is on but HDF5 was not found: run scripts/bootstrap.sh, or "
      "configure with -DMG_RETRO=OFF")
  endif()
  file(REAL_PATH ${HDF5_LIBRARY} hdf5_file)
  string(REGEX MATCH "libhdf5[a-z_]*\\.so\\.[0-9]+" MG_HDF5_FILE ${hdf5_file})
endif()
# FAISS is a static library, which leaves BLAS, LAPACK and OpenMP to its users.
if(MG_RETRO AND MG_FAISS)
  find_path(FAISS_INCLUDE faiss/IndexIVF.h)
  find_library(FAISS_LIBRARY faiss)
  find_library(LAPACK_LIBRARY lapack)
  find_library(BLAS_LIBRARY blas)
  if(NOT FAISS_INCLUDE OR NOT FAISS_LIBRARY OR NOT LAPACK_LIBRARY OR NOT BLAS_LIBRARY)
    message(FATAL_ERROR "MG_FAISS is on but FAISS was not found: run scripts/bootstrap.sh, or "
      "configure with -DMG_FAISS=OFF")
  endif()
  add_library(mg_faiss INTERFACE IMPORTED)
  target_include_directories(mg_faiss SYSTEM INTERFACE ${FAISS_INCLUDE})
  set(MG_FAISS_LIBRARIES ${FAISS_LIBRARY} ${LAPACK_LIBRARY} ${BLAS_LIBRARY} ${OpenMP_CXX_LIBRARIES})
  target_link_libraries(mg_faiss INTERFACE ${MG_FAISS_LIBRARIES})
endif()
if(MG_TESTS)
  find_package(GTest REQUIRED)
endif()

# NVIDIA's toolkit and cuDNN, only for builds with CUDA.
if(MG_CUDA)
  include(CheckLanguage)
  if(MG_CUDA_ARCHITECTURES STREQUAL "all")
    set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90a-real 100-real 120)
  else()
    set(CMAKE_CUDA_ARCHITECTURES ${MG_CUDA_ARCHITECTURES})
  endif()
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "MG_CUDA is on but nvcc was not found: install the CUDA toolkit and add its "
      "bin folder to PATH, or set CUDACXX to nvcc's path, or use the preset cpu")
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know nvcc's C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit 13 REQUIRED)
  find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(NOT CUDNN_INCLUDE OR NOT CUDNN_LIBRARY)
    message(FATAL_ERROR "MG_CUDA is on but cuDNN 9 was not found: install it beside the CUDA toolkit, "
      "or set CUDNN_INCLUDE and CUDNN_LIBRARY")
  endif()
  add_library(mg_cudnn INTERFACE IMPORTED)
  target_include_directories(mg_cudnn SYSTEM INTERFACE ${CUDNN_INCLUDE})
  target_link_libraries(mg_cudnn INTERFACE CUDA::cudart_static)
  # cuBLASLt, cuDNN and NCCL are not linked but loaded at first use (device/lazy_library.h), from
  # their current place or from where the system finds them.
  cmake_path(GET CUDNN_LIBRARY PARENT_PATH cudnn_folder)
  target_link_options(mg_cudnn INTERFACE
    "LINKER:-rpath,${CUDAToolkit_LIBRARY_DIR}" "LINKER:-rpath,${cudnn_folder}")
  find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
    HINTS ${PROJECT_SOURCE_DIR}/build/cudnn-frontend/include)
  if(CUDNN_FRONTEND_INCLUDE)
    target_include_directories(mg_cudnn SYSTEM INTERFACE ${CUDNN_FRONTEND_INCLUDE})
  else()
    message(WARNING "The headers of cudnn-frontend were not found: attention runs on slower own "
      "kernels. Run scripts/fetch_cudnn_frontend.sh and configure again")
  endif()
endif()
