# SPDX-License-Identifier: Apache-2.0
# Tests: one GoogleTest binary each, and what ctest has to know of it.
find_package(GTest REQUIRED)

# How much longer than in a plain build a test may take before something ends it, here and in
# tests/support: the sanitizers make the instrumented code several times slower.
set(FSDP_TEST_TIME_FACTOR 1)
if(FSDP_SANITIZE)
  set(FSDP_TEST_TIME_FACTOR 4)
endif()

# fsdp_set_time_limit(test seconds): what ctest grants it, times the build's factor.
function(fsdp_set_time_limit name seconds)
  math(EXPR limit "${seconds} * ${FSDP_TEST_TIME_FACTOR}")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${limit})
endfunction()

# fsdp_add_test(name TORCH none|program|heavy LABEL unit|property|ranks|parity|e2e|package
#               SOURCES a_test.cpp ... LINK base layout ... [TIMEOUT seconds] [SHARDS n])
# TORCH program: none itself, but it runs the program fsdp.
# One GoogleTest binary, one ctest entry (n entries with SHARDS, which ctest runs side by side).
function(fsdp_add_test name)
  cmake_parse_arguments(ARG "" "TORCH;LABEL;TIMEOUT;SHARDS" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE fsdp_flags fsdp_test_support GTest::gmock)
  foreach(module IN LISTS ARG_LINK)
    target_link_libraries(${name} PRIVATE fsdp_${module})
  endforeach()
  if(ARG_TORCH STREQUAL "heavy")
    target_link_libraries(${name} PRIVATE fsdp_torch fsdp_gloo_headers)
    target_precompile_headers(${name} REUSE_FROM fsdp_torch_pch)
  endif()
  if(ARG_TORCH STREQUAL "none")
    list(APPEND ARG_LABEL torch-free)
    add_dependencies(torch_free_tests ${name})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  math(EXPR last "${ARG_SHARDS} - 1")
  foreach(index RANGE ${last})
    if(ARG_SHARDS GREATER 1)
      set(test_name ${name}.${index})
    else()
      set(test_name ${name})
    endif()
    add_test(NAME ${test_name} COMMAND ${name})
    fsdp_set_time_limit(${test_name} ${ARG_TIMEOUT})
    set_tests_properties(${test_name} PROPERTIES LABELS "${ARG_LABEL}"
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index};OMP_NUM_THREADS=1;FSDP_BINARY=$<$<TARGET_EXISTS:fsdp_app>:$<TARGET_FILE:fsdp_app>>")
  endforeach()
endfunction()

# fsdp_add_late_test(name): a test on the simulated device, which is there already, once more with
# kernels that run late, so that races also give wrong numbers. Slow.
function(fsdp_add_late_test name)
  add_test(NAME ${name}_late COMMAND ${name})
  fsdp_set_time_limit(${name}_late 300)
  set_tests_properties(${name}_late PROPERTIES LABELS slow
    ENVIRONMENT "FSDP_SIM_MODE=late;OMP_NUM_THREADS=1")
endfunction()
