# MG_CPU_ARCH=portable compiles the CPU kernels once for each of these instruction sets. The program
# chooses one when it starts (megatron/kernels/instruction_set.h), and needs the first.
set(MG_CPU_VARIANTS avx2 avx512 avx512-bf16)
set(MG_OPTIONS_avx2 -march=x86-64-v3)
set(MG_OPTIONS_avx512 -march=x86-64-v4)
set(MG_OPTIONS_avx512-bf16 -march=x86-64-v4 -mavx512bf16)

if(MG_CPU_ARCH STREQUAL "portable")
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" OR MG_SANITIZE)
    message(FATAL_ERROR "MG_CPU_ARCH=portable is for x86-64 processors, without MG_SANITIZE: "
      "clear one, or set MG_CPU_ARCH to a value of -march")
  endif()
endif()

# mg_cpu_variants(mg_kernels objects cpu/a.cpp ...): compiles the sources of a library for each
# instruction set; sets `objects` to what the library needs of them. One object has all code of an
# instruction set, and its functions are visible under another name: without that the linker could
# take an inline function of the standard library from AVX-512 code for all code. Calls of the
# functions under their own names jump through a table.
function(mg_cpu_variants target out)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/variants)
  set(objects)
  set(lists)
  foreach(variant IN LISTS MG_CPU_VARIANTS)
    set(compiled ${target}_${variant})
    add_library(${compiled} OBJECT ${ARGN})
    set_target_properties(${compiled} PROPERTIES UNITY_BUILD ${MG_UNITY} POSITION_INDEPENDENT_CODE ON)
    # As the library itself, which is defined later; of two -march the last counts.
    target_compile_options(${compiled} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_OPTIONS>
      ${MG_OPTIONS_${variant}})
    target_include_directories(${compiled} PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_link_libraries(${compiled} PRIVATE $<TARGET_PROPERTY:${target},INTERFACE_LINK_LIBRARIES>)
    add_custom_command(OUTPUT ${folder}/${variant}.o ${folder}/${variant}.txt
      COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
      COMMAND ${CMAKE_COMMAND} -E env LD=${CMAKE_LINKER} NM=${CMAKE_NM} OBJCOPY=${CMAKE_OBJCOPY}
        ${PROJECT_SOURCE_DIR}/cmake/join_variant.sh ${folder} ${variant} $<TARGET_OBJECTS:${compiled}>
      DEPENDS ${PROJECT_SOURCE_DIR}/cmake/join_variant.sh ${compiled} $<TARGET_OBJECTS:${compiled}>
      COMMENT "Joining the ${variant} objects of ${target}" COMMAND_EXPAND_LISTS VERBATIM)
    list(APPEND objects ${folder}/${variant}.o)
    list(APPEND lists ${folder}/${variant}.txt)
  endforeach()
  add_custom_command(OUTPUT ${folder}/table.o
    COMMAND awk -f ${PROJECT_SOURCE_DIR}/cmake/variant_table.awk ${lists} > ${folder}/table.s
    COMMAND ${CMAKE_CXX_COMPILER} -c ${folder}/table.s -o ${folder}/table.o
    DEPENDS ${PROJECT_SOURCE_DIR}/cmake/variant_table.awk ${lists}
    COMMENT "Assembling the table of ${target}'s instruction sets" VERBATIM)
  list(APPEND objects ${folder}/table.o)
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set(${out} ${objects} PARENT_SCOPE)
endfunction()
