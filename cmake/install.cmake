# SPDX-License-Identifier: Apache-2.0
# Installs the library so that find_package(fsdp COMPONENTS core lm) works: the modules of each half,
# their headers, and a configuration file that looks for the LibTorch this build was made with.
# `cmake --install BUILD --component fsdp_core` installs one half; fsdp_program is the program.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(_fsdp_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
foreach(house core lm)
  string(TOUPPER ${house} _fsdp_house)
  get_property(_fsdp_targets GLOBAL PROPERTY FSDP_${_fsdp_house}_TARGETS)
  get_property(_fsdp_modules GLOBAL PROPERTY FSDP_${_fsdp_house}_MODULES)
  if(NOT _fsdp_targets)
    continue()
  endif()
  install(TARGETS ${_fsdp_targets} EXPORT fsdp_${house}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT fsdp_${house})
  install(EXPORT fsdp_${house} NAMESPACE fsdp:: FILE fsdp-${house}.cmake
          DESTINATION ${_fsdp_cmake_dir} COMPONENT fsdp_${house})
  foreach(module IN LISTS _fsdp_modules)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/fsdp/${module} OPTIONAL
            DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fsdp COMPONENT fsdp_${house}
            FILES_MATCHING PATTERN "*.hpp")
  endforeach()
endforeach()

install(FILES ${PROJECT_SOURCE_DIR}/include/fsdp/fsdp.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fsdp COMPONENT fsdp_core)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/fsdpConfig.cmake.in
  ${PROJECT_BINARY_DIR}/fsdpConfig.cmake INSTALL_DESTINATION ${_fsdp_cmake_dir}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fsdpConfig.cmake ${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/torch_by_path.cmake
              ${PROJECT_SOURCE_DIR}/cmake/find/Findlibdeflate.cmake
              ${PROJECT_SOURCE_DIR}/cmake/find/FindPCRE2.cmake
              ${PROJECT_SOURCE_DIR}/cmake/find/Findutf8proc.cmake
        DESTINATION ${_fsdp_cmake_dir} COMPONENT fsdp_core)

if(TARGET fsdp_app)
  install(TARGETS fsdp_app RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT fsdp_program)
  if(FSDP_BUILD_LM)  # what `fsdp train` trains on without --data
    install(FILES ${PROJECT_SOURCE_DIR}/data/kjv.txt DESTINATION ${CMAKE_INSTALL_DATADIR}/fsdp
            COMPONENT fsdp_program)
  endif()
endif()
