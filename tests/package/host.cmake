# SPDX-License-Identifier: Apache-2.0
# A project that has fsdp as a folder, on a machine without PCRE2: WAY is how it adds it.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)
set(ENV{CMAKE_PREFIX_PATH} ${TORCH})
set(arguments -DFSDP_SOURCE=${SOURCE} -DWAY=${WAY} -DCMAKE_DISABLE_FIND_PACKAGE_PCRE2=ON)
set(targets small)
if(WAY STREQUAL "fetch_content")
  # Nor with libdeflate and nlohmann/json: copies are used. Stand-ins for them, nothing is fetched.
  file(MAKE_DIRECTORY ${WORK}/json/include ${WORK}/libdeflate)
  list(APPEND arguments -DFETCHCONTENT_TRY_FIND_PACKAGE_MODE=NEVER
       -DFETCHCONTENT_SOURCE_DIR_NLOHMANN_JSON=${WORK}/json
       -DFETCHCONTENT_SOURCE_DIR_LIBDEFLATE=${WORK}/libdeflate)
  foreach(source crc32 arm/cpu_features x86/cpu_features)
    file(WRITE ${WORK}/libdeflate/lib/${source}.c "int class;  // C and not C++\n")
  endforeach()
  list(APPEND targets fsdp_deflate)
elseif(WAY STREQUAL "whole_host")
  list(APPEND targets consumer)
endif()
configure(host ${WORK}/build ${arguments})
run(${CMAKE_COMMAND} --build ${WORK}/build -j 2 --target ${targets})
run(${WORK}/build/out/small)
if(WAY STREQUAL "whole_host")
  run(${WORK}/build/out/consumer)
endif()
