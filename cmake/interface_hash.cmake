# cmake -DMG_SOURCE_DIR=... -DMG_OUTPUT=interface_hash.h -P interface_hash.cmake
# Writes a hash of the headers that a library of --train-step includes (megatron/run/train_step.h).
# Leaves the file alone if nothing changed.
cmake_policy(VERSION 3.25)
include(${MG_SOURCE_DIR}/cmake/required_headers.cmake)
mg_required_headers(${MG_SOURCE_DIR} headers)
list(SORT headers)
set(hashes)
foreach(header IN LISTS headers)
  file(SHA256 ${MG_SOURCE_DIR}/${header} hash)
  string(APPEND hashes "${header} ${hash}\n")
endforeach()
string(SHA256 hash "${hashes}")
string(SUBSTRING ${hash} 0 16 hash)
file(CONFIGURE OUTPUT ${MG_OUTPUT}
  CONTENT "#pragma once\n\n#define MEGATRON_INTERFACE_HASH \"${hash}\"\n")
