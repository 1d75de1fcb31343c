# SPDX-License-Identifier: Apache-2.0
# Functions that every layer uses to declare its library, its SIMD sources and its tests.
include(GNUInstallDirs)
find_package(Threads REQUIRED)

# Warnings, language level and sanitizers that every target of ours has; nothing is set globally.
add_library(headrace_flags INTERFACE)
target_compile_features(headrace_flags INTERFACE cxx_std_20)
target_compile_options(headrace_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wconversion -Wno-sign-conversion
  $<$<BOOL:${HEADRACE_WERROR}>:-Werror> -ffp-contract=off)
if(HEADRACE_SANITIZE)
  list(JOIN HEADRACE_SANITIZE "," _sanitizers)
  target_compile_options(headrace_flags INTERFACE -fsanitize=${_sanitizers} -fno-omit-frame-pointer -g)
  target_link_options(headrace_flags INTERFACE -fsanitize=${_sanitizers})
endif()

# headrace_library(<layer> SOURCES … [PUBLIC targets…] [PRIVATE targets…]): target headrace_<layer>, alias headrace::<layer>.
function(headrace_library layer)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(headrace_${layer} STATIC ${ARG_SOURCES})
  add_library(headrace::${layer} ALIAS headrace_${layer})
  set_target_properties(headrace_${layer} PROPERTIES POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${layer})
  target_include_directories(headrace_${layer} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include/headrace>)
  target_link_libraries(headrace_${layer} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE} $<BUILD_INTERFACE:headrace_flags> Threads::Threads)
endfunction()

# headrace_simd_sources(<flags> files…): the only place where instruction-set flags are given, to files named after their target.
function(headrace_simd_sources flags)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${flags}")
endfunction()

# add_layer_test(<layer> <name> [LABELS …] [LIBS …] [SOURCES …]): tests/<layer>/<name>.cpp as a GoogleTest program of one ctest entry.
function(add_layer_test layer name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS;LIBS;SOURCES" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set(target ${layer}_${name})
  add_executable(${target} ${name}.cpp ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE ${ARG_LIBS} headrace_flags GTest::gtest GTest::gmock GTest::gtest_main)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${layer}.${name} COMMAND ${target} WORKING_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  set_tests_properties(${layer}.${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "HEADRACE_REFERENCE=${PROJECT_SOURCE_DIR}/tests/reference;HEADRACE_SOURCE_DIR=${PROJECT_SOURCE_DIR};HEADRACE_BIN=${PROJECT_BINARY_DIR}/bin")
endfunction()
