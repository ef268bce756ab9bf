# SPDX-License-Identifier: Apache-2.0
# cmake -DCONSUMER=find_package|add_subdirectory -DSOURCE= -DBUILD= -DWORK= ... -P run.cmake
# Builds the consumer in WORK and runs it with one rank.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed with ${status}: ${ARGN}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
set(arguments -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=${TYPE})
if(CONSUMER STREQUAL "find_package")
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
  set(ENV{CMAKE_PREFIX_PATH} ${WORK}/prefix:${TORCH})
  list(APPEND arguments -DVERSION=${VERSION})
else()
  set(ENV{CMAKE_PREFIX_PATH} ${TORCH})
  list(APPEND arguments -DFSDP_SOURCE=${SOURCE})
endif()
run(${CMAKE_COMMAND} -S ${SOURCE}/tests/package/${CONSUMER} -B ${WORK}/build ${arguments})
run(${CMAKE_COMMAND} --build ${WORK}/build --target consumer -j 2)
run(${WORK}/build/consumer)
