# SPDX-License-Identifier: Apache-2.0
# Everything, installed: a project finds both halves, and the program starts from its prefix.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)
set(prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})

set(program ${prefix}/bin/fsdp)
run(${program} --version)
expect("\"${OUTPUT}\" MATCHES \"^fsdp ${VERSION} \"")
run(${program} run -n 2 -- ${program} --version)
string(REGEX MATCHALL "fsdp ${VERSION} " lines "${OUTPUT}")
list(LENGTH lines count)
expect("${count} EQUAL 2")

set(ENV{CMAKE_PREFIX_PATH} ${prefix}:${TORCH})
configure(installed_lm ${WORK}/build -DCMAKE_BUILD_TYPE=${TYPE})
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer)
