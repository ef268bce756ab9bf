# SPDX-License-Identifier: Apache-2.0
# What the cases share. Each gets SOURCE, BUILD, WORK, TORCH, GENERATOR, COMPILER, TYPE and VERSION.
unset(ENV{LD_LIBRARY_PATH})
file(REMOVE_RECURSE ${WORK})

# run(command...): must succeed; its standard output is in OUTPUT.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE error)
  message(STATUS "${ARGN}\n${output}${error}")
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed with ${status}: ${ARGN}")
  endif()
  set(OUTPUT "${output}" PARENT_SCOPE)
endfunction()

# configure(project build [-DX=Y ...]): with this build's compiler.
function(configure project build)
  run(${CMAKE_COMMAND} -S ${SOURCE}/tests/package/${project} -B ${build} -G ${GENERATOR}
      -DCMAKE_CXX_COMPILER=${COMPILER} ${ARGN})
endfunction()

function(expect condition)
  cmake_language(EVAL CODE "
    if(NOT (${condition}))
      message(FATAL_ERROR [==[not so: ${condition}]==])
    endif()")
endfunction()
