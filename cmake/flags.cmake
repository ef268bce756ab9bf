# SPDX-License-Identifier: Apache-2.0
# Flags that every target shares. The same -fPIC everywhere, or the precompiled header is refused.
option(FSDP_WERROR "Treat compiler warnings as errors" OFF)
add_library(fsdp_flags INTERFACE)
target_compile_options(fsdp_flags INTERFACE -fPIC)
# Under another project's -Werror, a compiler that is not known here must find nothing to add.
if(PROJECT_IS_TOP_LEVEL OR FSDP_WERROR)
  target_compile_options(fsdp_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
    -Wno-sign-conversion -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough -Winvalid-pch)
else()
  target_compile_options(fsdp_flags INTERFACE -w)
endif()
if(FSDP_WERROR)
  target_compile_options(fsdp_flags INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(fsdp_flags INTERFACE -Wno-interference-size)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # false alarms inside std::string, GCC's bugs 105651 and 105329: one cause, three names
    target_compile_options(fsdp_flags INTERFACE -Wno-restrict -Wno-stringop-overflow
                           -Wno-array-bounds)
  endif()
endif()
# What ccache needs in order to serve translation units that use the precompiled header.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(fsdp_flags INTERFACE -fpch-preprocess)
elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(fsdp_flags INTERFACE "SHELL:-Xclang -fno-pch-timestamp")
endif()

# torch/torch.h takes half a minute to parse: one precompiled copy serves every torch-heavy target.
add_library(fsdp_torch_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch.cpp)
target_link_libraries(fsdp_torch_pch PRIVATE fsdp_flags fsdp_torch fsdp_gloo_headers)
target_precompile_headers(fsdp_torch_pch PRIVATE <torch/torch.h>)
set_property(TARGET fsdp_torch_pch PROPERTY UNITY_BUILD OFF)
