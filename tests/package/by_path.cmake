# SPDX-License-Identifier: Apache-2.0
# A LibTorch with CUDA is taken by path, and a program needs libtorch_cuda although it calls nothing
# of it and the linker drops what is not called.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)
configure(by_path ${WORK}/build -DTORCH_BY_PATH=${SOURCE}/cmake/torch_by_path.cmake)
run(${CMAKE_COMMAND} --build ${WORK}/build)
execute_process(COMMAND readelf -d ${WORK}/build/program OUTPUT_VARIABLE needed COMMAND_ERROR_IS_FATAL ANY)
if(NOT needed MATCHES "NEEDED[^\n]*libtorch_cuda\\.so")
  message(FATAL_ERROR "the program does not need libtorch_cuda.so:\n${needed}")
endif()
if(needed MATCHES "NEEDED[^\n]*libc10_cuda\\.so")
  message(FATAL_ERROR "this linker keeps libraries that nobody calls: the test shows nothing")
endif()
run(${WORK}/build/program)
