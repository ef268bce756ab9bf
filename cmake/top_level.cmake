# SPDX-License-Identifier: Apache-2.0
# What this project decides only where no other adds it: where programs go, the build type, and what
# makes the same build faster: ccache, a quick linker, and no more jobs than the memory carries. Set
# by hand, a value stays.
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

# A translation unit with torch/torch.h takes 1.2 GB, a link about 1 GB.
cmake_host_system_information(RESULT _fsdp_cores QUERY NUMBER_OF_LOGICAL_CORES)
cmake_host_system_information(RESULT _fsdp_memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR _fsdp_compile_jobs "${_fsdp_memory_mib} / 1500")
if(_fsdp_compile_jobs GREATER _fsdp_cores)
  set(_fsdp_compile_jobs ${_fsdp_cores})
endif()
if(_fsdp_compile_jobs LESS 1)
  set(_fsdp_compile_jobs 1)
endif()
set(_fsdp_link_jobs 1)
if(_fsdp_memory_mib GREATER 8000 AND _fsdp_cores GREATER 1)
  set(_fsdp_link_jobs 2)
endif()
set_property(GLOBAL PROPERTY JOB_POOLS compile=${_fsdp_compile_jobs} link=${_fsdp_link_jobs})
if(NOT DEFINED CMAKE_JOB_POOL_COMPILE)
  set(CMAKE_JOB_POOL_COMPILE compile)
endif()
if(NOT DEFINED CMAKE_JOB_POOL_LINK)
  set(CMAKE_JOB_POOL_LINK link)
endif()

# ccache refuses translation units with a precompiled header unless it may ignore time stamps.
option(FSDP_CCACHE "Compile through ccache when it is installed" ON)
find_program(FSDP_CCACHE_PROGRAM ccache)
mark_as_advanced(FSDP_CCACHE_PROGRAM)
if(FSDP_CCACHE AND FSDP_CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_MAXSIZE=10G ${FSDP_CCACHE_PROGRAM})
endif()

include(CheckLinkerFlag)
foreach(linker mold lld)
  check_linker_flag(CXX -fuse-ld=${linker} FSDP_HAVE_${linker})
  if(FSDP_HAVE_${linker})
    add_link_options(-fuse-ld=${linker})
    break()
  endif()
endforeach()
