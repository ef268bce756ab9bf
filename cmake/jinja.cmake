# SPDX-License-Identifier: Apache-2.0
# fsdp_jinja: what runs chat templates, llama.cpp's engine (MIT), out of the sources of PyPI's
# llama-cpp-python, pinned by version and hash. Fetched by pip (77 MB, of which 15 files stay in the
# build folder) when there is a network; FSDP_JINJA_DIR names a folder of llama.cpp that is here,
# FSDP_JINJA=OFF fetches nothing. Without it src/data/no_jinja.cpp takes its place.
option(FSDP_JINJA "Fetch what runs chat templates" ${PROJECT_IS_TOP_LEVEL})
set(FSDP_JINJA_DIR "" CACHE PATH "A folder of llama.cpp with common/jinja")
set(jinja_package llama-cpp-python==0.3.36)
set(jinja_sum 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e)
set(jinja_name llama_cpp_python-0.3.36)
# Beside all presets' folders, so that it is fetched once.
set(jinja_store ${PROJECT_SOURCE_DIR}/build/jinja)
set(jinja_root ${jinja_store}/${jinja_name}/vendor/llama.cpp)

if(FSDP_JINJA_DIR)
  set(jinja_root ${FSDP_JINJA_DIR})
elseif(FSDP_JINJA AND NOT FETCHCONTENT_FULLY_DISCONNECTED AND NOT EXISTS ${jinja_store}/complete)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  message(STATUS "Fetching ${jinja_package} for chat templates")
  file(MAKE_DIRECTORY ${jinja_store})
  file(WRITE ${jinja_store}/requirements.txt "${jinja_package} --hash=sha256:${jinja_sum}\n")
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -m pip download --quiet --disable-pip-version-check --no-input --no-deps
            --no-binary llama-cpp-python --require-hashes -r ${jinja_store}/requirements.txt -d ${jinja_store}
    RESULT_VARIABLE jinja_result OUTPUT_FILE ${jinja_store}/pip.log ERROR_FILE ${jinja_store}/pip.log
    TIMEOUT 600)
  set(jinja_archive ${jinja_store}/${jinja_name}.tar.gz)
  if(EXISTS ${jinja_archive})
    file(SHA256 ${jinja_archive} jinja_found)
    if(jinja_found STREQUAL jinja_sum)
      file(ARCHIVE_EXTRACT INPUT ${jinja_archive} DESTINATION ${jinja_store} PATTERNS
           "*/vendor/llama.cpp/common/jinja/*" "*/vendor/llama.cpp/common/json.*"
           "*/vendor/llama.cpp/common/unicode.*" "*/vendor/llama.cpp/models/templates/*"
           "*/vendor/llama.cpp/LICENSE")
      file(TOUCH ${jinja_store}/complete)
    endif()
    file(REMOVE ${jinja_archive})
  endif()
  if(NOT EXISTS ${jinja_store}/complete)
    message(STATUS "  this failed (${jinja_store}/pip.log); the program will say so where a chat template is asked for")
  endif()
endif()

if(EXISTS ${jinja_root}/common/jinja/runtime.cpp)
  set(FSDP_HAS_JINJA TRUE)
  set(jinja_common ${jinja_root}/common)
  add_library(fsdp_jinja OBJECT ${jinja_common}/jinja/lexer.cpp ${jinja_common}/jinja/parser.cpp
    ${jinja_common}/jinja/runtime.cpp ${jinja_common}/jinja/string.cpp ${jinja_common}/jinja/value.cpp
    ${jinja_common}/json.cpp ${jinja_common}/unicode.cpp)
  target_compile_features(fsdp_jinja PUBLIC cxx_std_20)
  target_compile_options(fsdp_jinja PRIVATE -w -fPIC)
  set_target_properties(fsdp_jinja PROPERTIES UNITY_BUILD OFF)
  # third_party/jinja has the one header of ggml that json.cpp asks for.
  target_include_directories(fsdp_jinja SYSTEM PUBLIC ${jinja_common}
    PRIVATE ${PROJECT_SOURCE_DIR}/third_party/jinja)
  target_link_libraries(fsdp_jinja PRIVATE fsdp_json)
else()
  set(FSDP_HAS_JINJA FALSE)
endif()
