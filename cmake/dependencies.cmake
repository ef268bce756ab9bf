# SPDX-License-Identifier: Apache-2.0
# What the core needs beside LibTorch: nlohmann/json and libdeflate, from the system or else from a
# pinned copy. CMake's own switches decide: FETCHCONTENT_TRY_FIND_PACKAGE_MODE=NEVER always takes the
# copies, FETCHCONTENT_FULLY_DISCONNECTED=ON fetches nothing, FETCHCONTENT_SOURCE_DIR_LIBDEFLATE and
# FETCHCONTENT_SOURCE_DIR_NLOHMANN_JSON name copies that are here.
# The copies' own build files are not run: libdeflate's sets the build type of the whole project.
include(FetchContent)
FetchContent_Declare(nlohmann_json
  URL https://github.com/nlohmann/json/releases/download/v3.11.2/json.tar.xz
  URL_HASH SHA256=8c4b26bf4b422252e13f332bc5e388ec0ab5c3443d24399acb675e68278d341f
  DOWNLOAD_EXTRACT_TIMESTAMP OFF SOURCE_SUBDIR not-built
  FIND_PACKAGE_ARGS 3.9 GLOBAL)
FetchContent_Declare(libdeflate
  URL https://github.com/ebiggers/libdeflate/archive/refs/tags/v1.25.tar.gz
  URL_HASH SHA256=d11473c1ad4c57d874695e8026865e38b47116bbcb872bfc622ec8f37a86017d
  DOWNLOAD_EXTRACT_TIMESTAMP OFF SOURCE_SUBDIR not-built
  FIND_PACKAGE_ARGS MODULE GLOBAL)
FetchContent_MakeAvailable(nlohmann_json libdeflate)

# fsdp_json: used by sources only, so that installed headers do not need it.
add_library(fsdp_json INTERFACE)
if(TARGET nlohmann_json::nlohmann_json)
  target_link_libraries(fsdp_json INTERFACE nlohmann_json::nlohmann_json)
else()
  target_include_directories(fsdp_json SYSTEM INTERFACE ${nlohmann_json_SOURCE_DIR}/include)
endif()
