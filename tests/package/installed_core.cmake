# SPDX-License-Identifier: Apache-2.0
# The core alone, installed: a project finds, builds and runs it; asked for language models it says
# what is missing.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)
set(prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix} --component fsdp_core)
file(GLOB lm ${prefix}/include/fsdp/models ${prefix}/include/fsdp/train ${prefix}/lib*/libfsdp_models.a)
expect("\"${lm}\" STREQUAL \"\"")

set(ENV{CMAKE_PREFIX_PATH} ${prefix}:${TORCH})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE}/tests/package/installed_lm -B ${WORK}/refused
  -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER} RESULT_VARIABLE status ERROR_VARIABLE error)
string(REGEX REPLACE "[ \n]+" " " error "${error}")
if(status EQUAL 0 OR NOT error MATCHES "installed without its language-model half")
  message(FATAL_ERROR "component lm was not refused: ${error}")
endif()

configure(installed ${WORK}/build -DCMAKE_BUILD_TYPE=${TYPE} -DVERSION=${VERSION}
          -DCMAKE_DISABLE_FIND_PACKAGE_PCRE2=ON)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer)
