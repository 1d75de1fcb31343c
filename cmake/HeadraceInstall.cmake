# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` leaves: the libraries, their public headers and a package that find_package(headrace) reads.
include(CMakePackageConfigHelpers)

# headrace::headrace is all layers of this build.
get_property(_libraries GLOBAL PROPERTY HEADRACE_LIBRARIES)
add_library(headrace_all_layers INTERFACE)
add_library(headrace::headrace ALIAS headrace_all_layers)
set_target_properties(headrace_all_layers PROPERTIES EXPORT_NAME headrace)
target_link_libraries(headrace_all_layers INTERFACE ${_libraries})
install(TARGETS headrace_all_layers EXPORT headraceTargets)

set(_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/headrace)
install(EXPORT headraceTargets NAMESPACE headrace:: DESTINATION ${_package_folder})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/headraceConfig.cmake.in ${PROJECT_BINARY_DIR}/headraceConfig.cmake
  INSTALL_DESTINATION ${_package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/headraceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/headraceConfig.cmake ${PROJECT_BINARY_DIR}/headraceConfigVersion.cmake DESTINATION ${_package_folder})

# The example of the optimizers by themselves.
if(TARGET headrace_cpu_adam)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/cpu_adam DESTINATION ${CMAKE_INSTALL_DATADIR}/headrace/examples)
endif()
