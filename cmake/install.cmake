# SPDX-License-Identifier: Apache-2.0
# Installs the library so that find_package(fsdp) works: all modules, their headers, and a
# configuration file that looks for the LibTorch this build was made with.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(_fsdp_modules GLOBAL PROPERTY FSDP_MODULE_TARGETS)
install(TARGETS ${_fsdp_modules} fsdp_torch fsdp_fsdp EXPORT fsdpTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET fsdp_app)
  install(TARGETS fsdp_app RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/fsdp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.hpp")

set(_fsdp_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
install(EXPORT fsdpTargets NAMESPACE fsdp:: DESTINATION ${_fsdp_cmake_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/fsdpConfig.cmake.in
  ${PROJECT_BINARY_DIR}/fsdpConfig.cmake INSTALL_DESTINATION ${_fsdp_cmake_dir}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fsdpConfig.cmake ${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake
        DESTINATION ${_fsdp_cmake_dir})
