# SPDX-License-Identifier: Apache-2.0
# FSDP_SANITIZE: "address" (with undefined behaviour) or "thread", for every target. LibTorch itself
# is not instrumented: leaks inside it are ignored, and under "thread" only torch-free code counts.
set(FSDP_SANITIZE "" CACHE STRING "Sanitizer: empty, address or thread")
set_property(CACHE FSDP_SANITIZE PROPERTY STRINGS "" address thread)
if(FSDP_SANITIZE STREQUAL "address")
  set(_fsdp_sanitize -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # typeid of classes that LibTorch's libraries hide is not comparable.
    list(APPEND _fsdp_sanitize -fno-sanitize=vptr,function)
  else()
    list(APPEND _fsdp_sanitize -fno-sanitize=vptr)
  endif()
elseif(FSDP_SANITIZE STREQUAL "thread")
  set(_fsdp_sanitize -fsanitize=thread -fno-omit-frame-pointer)
elseif(FSDP_SANITIZE)
  message(FATAL_ERROR "FSDP_SANITIZE is '${FSDP_SANITIZE}'; it can be empty, 'address' or 'thread'.")
endif()
if(FSDP_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 takes members of std::regex for uninitialised once their accesses are instrumented.
  list(APPEND _fsdp_sanitize -Wno-maybe-uninitialized)
endif()
if(FSDP_SANITIZE)
  add_compile_options(${_fsdp_sanitize})
  add_link_options(${_fsdp_sanitize})
endif()
