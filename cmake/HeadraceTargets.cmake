# SPDX-License-Identifier: Apache-2.0
# Functions that every layer uses to declare its library, its SIMD sources and its tests.
include(GNUInstallDirs)
find_package(Threads REQUIRED)

# Warnings, language level and sanitizers that every target of ours has; nothing is set globally.
add_library(headrace_flags INTERFACE)
target_compile_features(headrace_flags INTERFACE cxx_std_20)
target_compile_options(headrace_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wconversion -Wno-sign-conversion
  $<$<BOOL:${HEADRACE_WERROR}>:-Werror> -ffp-contract=off
  # GCC 12 sees overlapping copies in every concatenation of strings (its bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(HEADRACE_SANITIZE)
  list(JOIN HEADRACE_SANITIZE "," _sanitizers)
  target_compile_options(headrace_flags INTERFACE -fsanitize=${_sanitizers} -fno-omit-frame-pointer -O1 -g1 -fno-sanitize-recover=all)
  target_link_options(headrace_flags INTERFACE -fsanitize=${_sanitizers})
endif()

# headrace_library(<layer> SOURCES … [HEADERS …] [PUBLIC targets…] [PRIVATE targets…]): target headrace_<layer>, alias
# headrace::<layer>. HEADERS are those made for others: they are installed, and bindings may include them.
function(headrace_library layer)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;PUBLIC;PRIVATE" ${ARGN})
  set(target headrace_${layer})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(headrace::${layer} ALIAS ${target})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${layer})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/headrace>)
  target_link_libraries(${target} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE} $<BUILD_INTERFACE:headrace_flags> Threads::Threads)
  set(headers)
  if(ARG_HEADERS)
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HEADERS})
    set(headers FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headrace)
  endif()
  install(TARGETS ${target} EXPORT headraceTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} ${headers})
  set_property(GLOBAL APPEND PROPERTY HEADRACE_LIBRARIES ${target})
endfunction()

# headrace_simd_sources(<flags> files…): the only place where instruction-set flags are given, to files named after their target.
function(headrace_simd_sources flags)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${flags}")
endfunction()

# What every test of ours finds in its environment.
set(HEADRACE_TEST_ENVIRONMENT
  "HEADRACE_REFERENCE=${PROJECT_SOURCE_DIR}/tests/reference;HEADRACE_SOURCE_DIR=${PROJECT_SOURCE_DIR};HEADRACE_BIN=${PROJECT_BINARY_DIR}/bin")

# add_layer_test(<layer> <name> [LABELS …] [LIBS …] [SOURCES …] [TIMEOUT s]): <name>.cpp as a GoogleTest program of one ctest entry.
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
  # What is tested is optimised in its library; a third of a test's compile time is saved here.
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${layer}.${name} COMMAND ${target} WORKING_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  set_tests_properties(${layer}.${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "${HEADRACE_TEST_ENVIRONMENT}")
endfunction()
