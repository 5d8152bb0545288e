# `cmake --install`: component runtime: the program, its manual page and completions; component
# development: the headers that those of include/megatron need, and one static library with everything
# but the commands, for find_package(megatron).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# All folders in one archive, so that users link one library and need no order.
get_property(MG_ALL_LIBRARIES GLOBAL PROPERTY MG_LIBRARIES)
list(FILTER MG_ALL_LIBRARIES EXCLUDE REGEX "^mg_(cli|corpus|retro|.*_commands)$")
set(event_files mg_no_event_files)
if(MG_PROTOBUF)
  list(APPEND MG_ALL_LIBRARIES mg_event_proto)
  set(event_files mg_event_files)
endif()
set(archive ${CMAKE_ARCHIVE_OUTPUT_DIRECTORY}/libmegatron.a)
set(lines "CREATE ${archive}\n")
foreach(library IN LISTS MG_ALL_LIBRARIES)
  string(APPEND lines "ADDLIB $<TARGET_FILE:${library}>\n")
endforeach()
string(APPEND lines "ADDMOD $<JOIN:$<TARGET_OBJECTS:${event_files}>,\nADDMOD >\n")
string(APPEND lines "SAVE\nEND\n")
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/libmegatron.mri CONTENT "${lines}")
add_custom_command(OUTPUT ${archive}
  COMMAND ${CMAKE_COMMAND} -E rm -f ${archive}
  COMMAND ${CMAKE_AR} -M < ${CMAKE_BINARY_DIR}/libmegatron.mri
  DEPENDS ${MG_ALL_LIBRARIES} $<TARGET_OBJECTS:${event_files}> ${CMAKE_BINARY_DIR}/libmegatron.mri
  COMMENT "Joining all libraries in libmegatron.a" VERBATIM)
add_custom_target(megatron_archive ALL DEPENDS ${archive})

# The required headers are determined at installation.
install(CODE "set(MG_SOURCE_DIR [[${PROJECT_SOURCE_DIR}]])
set(MG_GENERATED_DIR [[${MG_GENERATED_DIR}]])
set(MG_INCLUDE_NAME [[${CMAKE_INSTALL_INCLUDEDIR}]])" COMPONENT development)
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/install_headers.cmake COMPONENT development)
install(FILES ${archive} DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)

# The manual page has the text of `megatron --help`.
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/megatron.1
  COMMAND $<TARGET_FILE:megatron> --help > ${CMAKE_BINARY_DIR}/commands.txt
  COMMAND awk -v version=${PROJECT_VERSION} -f ${PROJECT_SOURCE_DIR}/packaging/man_page.awk
    ${CMAKE_BINARY_DIR}/commands.txt > ${CMAKE_BINARY_DIR}/megatron.1
  DEPENDS megatron ${PROJECT_SOURCE_DIR}/packaging/man_page.awk COMMENT "Writing the manual page" VERBATIM)
add_custom_target(megatron_man ALL DEPENDS ${CMAKE_BINARY_DIR}/megatron.1)
# A package may bring the libraries that the program needs and those that these need: the old tag is
# for both.
if(MG_CPU_ARCH STREQUAL "portable")
  set_target_properties(megatron PROPERTIES INSTALL_RPATH "\$ORIGIN/../${CMAKE_INSTALL_LIBDIR}/megatron")
  target_link_options(megatron PRIVATE "LINKER:--disable-new-dtags")
endif()
install(TARGETS megatron RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
install(FILES ${CMAKE_BINARY_DIR}/megatron.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT runtime)
install(FILES packaging/megatron.bash RENAME megatron
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT runtime)
install(FILES LICENSE RENAME copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/megatron COMPONENT runtime)
install(FILES packaging/_megatron DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT runtime)
install(FILES packaging/megatron.fish
  DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT runtime)

# Libraries without a CMake package, or with one that names absolute paths: MPI's C interface,
# oneDNN, those of the tokenizers, of Parquet, the static protobuf, and that of the server.
set(libraries ${DNNL_LIBRARY} ${UTF8PROC_LIBRARY})
if(MG_MPI)
  if(MPI_mpi_LIBRARY)
    list(APPEND libraries ${MPI_mpi_LIBRARY})
  else()
    list(APPEND libraries ${MPI_CXX_LIBRARIES})
  endif()
endif()
foreach(part IN ITEMS "PCRE2 PCRE2_LIBRARY" "SNAPPY SNAPPY_LIBRARY" "ZSTD ZSTD_LIBRARY"
        "SENTENCEPIECE SENTENCEPIECE_LIBRARY" "SENTENCEPIECE SENTENCEPIECE_TRAIN_LIBRARY"
        "PROTOBUF PROTOBUF_LITE_ARCHIVE" "SERVER HTTPLIB_LIBRARY")
  separate_arguments(part)
  list(GET part 0 option)
  list(GET part 1 library)
  if(MG_${option})
    list(APPEND libraries ${${library}})
  endif()
endforeach()
list(JOIN libraries " " MG_INSTALLED_LIBRARIES)

configure_package_config_file(cmake/megatronConfig.cmake.in
  ${CMAKE_BINARY_DIR}/megatronConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/megatron
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/megatronConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/megatronConfig.cmake
  ${CMAKE_BINARY_DIR}/megatronConfigVersion.cmake megatron/training/private_protobuf.map
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/megatron COMPONENT development)
