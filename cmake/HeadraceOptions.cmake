# SPDX-License-Identifier: Apache-2.0
# The options of the build. AUTO takes an optional library when it is found and says what it found.
set(HEADRACE_WITH_URING AUTO CACHE STRING "io_uring backend: ON, OFF or AUTO")
set_property(CACHE HEADRACE_WITH_URING PROPERTY STRINGS ON OFF AUTO)
option(HEADRACE_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(HEADRACE_BUILD_PERF "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(HEADRACE_BUILD_BINDINGS "Build the headrace program" ON)
option(HEADRACE_WERROR "Treat warnings as errors" OFF)
set(HEADRACE_LAYERS "" CACHE STRING "Only these layers and their tests (core;io;…); empty means all")
set(HEADRACE_SANITIZE "" CACHE STRING "Sanitizers to build with: address;undefined or thread")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
