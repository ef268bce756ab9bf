# SPDX-License-Identifier: Apache-2.0
# LibTorch as the target fsdp::torch, with system includes. A LibTorch that the caller names
# (CMAKE_PREFIX_PATH, Torch_DIR) wins, then the wheel in .venv of this checkout, then the system's.
# One that is built for CUDA is taken by path, see torch_by_path.cmake; FSDP_CUDA demands one, and
# looks into .venv-cuda in place of .venv.
option(FSDP_CUDA "Build for a LibTorch with CUDA, and stop when it is one without" OFF)
# An earlier answer in the cache must not outlive the question.
if(PROJECT_IS_TOP_LEVEL AND NOT "${CMAKE_PREFIX_PATH}" STREQUAL "${_fsdp_torch_prefix}")
  unset(Torch_DIR CACHE)
  unset(Caffe2_DIR CACHE)
  unset(TORCH_LIBRARY CACHE)
  unset(C10_LIBRARY CACHE)
  unset(c10_LIBRARY CACHE)
  unset(torch_cpu_LIBRARY CACHE)
  unset(_fsdp_gloo_header CACHE)
endif()
set(_fsdp_torch_prefix "${CMAKE_PREFIX_PATH}" CACHE INTERNAL "Where LibTorch was asked for last")
if(SKBUILD)
  # `pip install .` builds in an environment of its own, which has no torch, with the interpreter for
  # which the package is: the torch that is installed there is the one to build for.
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_paths()['purelib'], end='')"
    OUTPUT_VARIABLE _fsdp_site_packages COMMAND_ERROR_IS_FATAL ANY)
  if(NOT EXISTS ${_fsdp_site_packages}/torch/share/cmake)
    message(FATAL_ERROR "There is no torch in ${_fsdp_site_packages}. The package is built for the torch "
                        "that is installed: install that first, for example pip install torch==2.13.0")
  endif()
  list(PREPEND CMAKE_PREFIX_PATH ${_fsdp_site_packages}/torch/share/cmake)
endif()
set(CMAKE_MESSAGE_LOG_LEVEL ERROR)  # the wheel's configuration warns of kineto, which nobody needs
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)  # a project that adds this one as a sub-folder links them too
include(${CMAKE_CURRENT_LIST_DIR}/torch_by_path.cmake)
set(_fsdp_cuda_folders ${CMAKE_PREFIX_PATH} ${Torch_DIR})
if(FSDP_CUDA)
  file(GLOB _fsdp_cuda_wheel ${PROJECT_SOURCE_DIR}/.venv-cuda/lib/python3*/site-packages/torch)
  list(APPEND _fsdp_cuda_folders ${_fsdp_cuda_wheel})
endif()
set(Torch_FOUND FALSE)
if(NOT TARGET torch)  # a project around this one may have found it, with CUDA's own tools
  fsdp_find_cuda_torch(${_fsdp_cuda_folders})
endif()
set(_fsdp_torch_by_path ${Torch_FOUND})
if(FSDP_CUDA AND NOT Torch_FOUND)
  message(FATAL_ERROR "No LibTorch that is built for CUDA (with lib/libtorch_cuda.so) is in "
                      "'${_fsdp_cuda_folders}'. Either run ./dev build cuda, which installs one into "
                      ".venv-cuda, or pass -DCMAKE_PREFIX_PATH=<libtorch>.")
endif()
if(NOT Torch_FOUND)
  find_package(Torch QUIET NO_SYSTEM_ENVIRONMENT_PATH NO_CMAKE_SYSTEM_PATH NO_CMAKE_PACKAGE_REGISTRY)
endif()
if(NOT Torch_FOUND)
  file(GLOB _fsdp_wheel_torch ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch/share/cmake)
  find_package(Torch QUIET PATHS ${_fsdp_wheel_torch} NO_DEFAULT_PATH)
endif()
if(NOT Torch_FOUND)
  find_package(Torch QUIET)
endif()
unset(CMAKE_MESSAGE_LOG_LEVEL)
unset(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL)
if(NOT Torch_FOUND)
  message(FATAL_ERROR "LibTorch was not found. Either run ./dev build, which installs the wheel into "
                      ".venv, or pass -DCMAKE_PREFIX_PATH=<libtorch>.")
endif()
set(_fsdp_torch_kind "")
if(_fsdp_torch_by_path)
  set(_fsdp_torch_kind " with CUDA")
endif()
message(STATUS "LibTorch ${Torch_VERSION}${_fsdp_torch_kind} in ${TORCH_INSTALL_PREFIX}")

find_package(Threads REQUIRED)
add_library(fsdp_torch INTERFACE)
add_library(fsdp::torch ALIAS fsdp_torch)
set_target_properties(fsdp_torch PROPERTIES EXPORT_NAME torch)
# The installed fsdp::torch gets its LibTorch from fsdpConfig.cmake, on the machine that uses it.
target_include_directories(fsdp_torch SYSTEM INTERFACE "$<BUILD_INTERFACE:${TORCH_INCLUDE_DIRS}>")
target_link_libraries(fsdp_torch INTERFACE "$<BUILD_INTERFACE:${TORCH_LIBRARIES}>" Threads::Threads)

# ProcessGroupGloo.hpp includes Gloo's headers, which the wheel does not carry; only forward
# declarations of them are used. third_party/gloo_headers says the little that is needed.
find_file(_fsdp_gloo_header torch/csrc/distributed/c10d/ProcessGroupGloo.hpp
          PATHS ${TORCH_INCLUDE_DIRS} NO_DEFAULT_PATH)
if(NOT _fsdp_gloo_header)
  message(FATAL_ERROR "The LibTorch in ${TORCH_INSTALL_PREFIX} was built without torch.distributed "
                      "(no ProcessGroupGloo.hpp). Use the PyPI wheel or a LibTorch with distributed on.")
endif()
add_library(fsdp_gloo_headers INTERFACE)
target_include_directories(fsdp_gloo_headers SYSTEM INTERFACE ${PROJECT_SOURCE_DIR}/third_party/gloo_headers)
target_compile_definitions(fsdp_gloo_headers INTERFACE USE_C10D_GLOO)
