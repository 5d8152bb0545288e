# `cpack -G DEB` in a build of the preset package: two packages of Debian, one for each component of
# cmake/install.cmake. scripts/package.sh calls it.
set(CPACK_PACKAGE_NAME megatron)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "megatron.cpp contributors")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME megatron)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION science)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "train, run and convert large language models
The program megatron trains GPT, BERT and T5 models as Megatron-LM does,
and generates, serves, evaluates and converts.")
if(MG_RETRO)  # loaded at first use
  string(REGEX REPLACE "^libhdf5(.*)\\.so\\.([0-9]+)$" "libhdf5-\\2" hdf5_package "${MG_HDF5_FILE}")
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_SUGGESTS "${hdf5_package}-1 | ${hdf5_package}")
endif()

# The static library needs the packages that bootstrap.sh installs for it.
execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/bootstrap.sh --list OUTPUT_VARIABLE packages)
string(REPLACE "\n" ";" packages "${packages}")
list(FILTER packages INCLUDE REGEX "-dev$")
list(FILTER packages EXCLUDE REGEX "gtest|gmock|faiss|hdf5")
if(NOT MG_MPI)
  list(FILTER packages EXCLUDE REGEX "openmpi")
endif()
list(JOIN packages ", " packages)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libmegatron-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "megatron (= ${PROJECT_VERSION}), g++, ${packages}")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "library of megatron, headers and CMake package
For programs that train and run models through megatron/megatron.h.")
include(CPack)
