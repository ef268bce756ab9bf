# SPDX-License-Identifier: Apache-2.0
# fsdp_module(name TORCH none|heavy SOURCES a.cpp ... [DEPENDS base ...] [USES fsdp_json ...])
# One static library a module, sources in src/<name>, public headers in include/fsdp/<name>.
# heavy: LibTorch, by way of the precompiled header. USES: targets that sources need and headers do
# not. The variable FSDP_HOUSE (CORE or LM) says to which half it belongs.
function(fsdp_module name)
  cmake_parse_arguments(ARG "" "TORCH" "SOURCES;DEPENDS;USES" ${ARGN})
  set(target fsdp_${name})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(fsdp::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} UNITY_BUILD OFF)
  if(NOT PROJECT_IS_TOP_LEVEL)
    set_target_properties(${target} PROPERTIES SYSTEM ON)  # another project's warnings are not ours
  endif()
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:fsdp_flags> ${ARG_USES})
  foreach(dependency IN LISTS ARG_DEPENDS)
    target_link_libraries(${target} PUBLIC fsdp_${dependency})
  endforeach()
  if(ARG_TORCH STREQUAL "heavy")
    target_link_libraries(${target} PUBLIC fsdp_torch PRIVATE $<BUILD_INTERFACE:fsdp_gloo_headers>)
    target_precompile_headers(${target} REUSE_FROM fsdp_torch_pch)
  endif()
  set_property(GLOBAL APPEND PROPERTY FSDP_${FSDP_HOUSE}_TARGETS ${target})
  set_property(GLOBAL APPEND PROPERTY FSDP_${FSDP_HOUSE}_MODULES ${name})
endfunction()
