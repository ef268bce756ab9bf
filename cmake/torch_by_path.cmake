# SPDX-License-Identifier: Apache-2.0
# fsdp_find_cuda_torch(FOLDER...): a LibTorch that is built for CUDA, from the first of these folders
# that has one, and from its libraries by path. Its own configuration file would ask for CUDA's
# compiler and libraries, of which a program that only links LibTorch needs none. Sets what
# find_package(Torch) sets; Torch_FOUND is false when none has one.
function(fsdp_find_cuda_torch)
  set(Torch_FOUND FALSE)
  foreach(folder IN LISTS ARGN)
    # The folder itself, or the share/cmake inside of it.
    foreach(place ${folder} ${folder}/../.. ${folder}/../../..)
      if(EXISTS ${place}/lib/libtorch_cuda.so AND EXISTS ${place}/include/ATen/ATen.h)
        get_filename_component(prefix ${place} ABSOLUTE)
        set(Torch_FOUND TRUE)
        break()
      endif()
    endforeach()
    if(Torch_FOUND)
      break()
    endif()
  endforeach()
  if(Torch_FOUND)
    file(GLOB headers ${prefix}/include/torch/headeronly/version.h
         ${prefix}/include/torch/csrc/api/include/torch/version.h)
    set(version "")
    foreach(part MAJOR MINOR PATCH)
      foreach(header IN LISTS headers)
        file(STRINGS ${header} line REGEX "define TORCH_VERSION_${part} +[0-9]+")
        if(line)
          string(REGEX REPLACE ".* ([0-9]+).*" "\\1" number "${line}")
          list(APPEND version ${number})
          break()
        endif()
      endforeach()
    endforeach()
    list(JOIN version "." version)
    set(Torch_VERSION ${version} PARENT_SCOPE)
    set(TORCH_INSTALL_PREFIX ${prefix} PARENT_SCOPE)
    set(TORCH_LIBRARY ${prefix}/lib/libtorch.so PARENT_SCOPE)
    set(TORCH_INCLUDE_DIRS ${prefix}/include ${prefix}/include/torch/csrc/api/include PARENT_SCOPE)
    # No symbol of libtorch_cuda is called, and it registers what the program computes with: a linker
    # that drops libraries nobody calls would leave a program for the CPU. One item, so that nothing
    # comes between the words. What LibTorch itself needs, it finds by its own paths.
    set(TORCH_LIBRARIES
        -Wl,--push-state,--no-as-needed,${prefix}/lib/libtorch_cuda.so,--pop-state
        ${prefix}/lib/libtorch.so ${prefix}/lib/libtorch_cpu.so ${prefix}/lib/libc10_cuda.so
        ${prefix}/lib/libc10.so -Wl,--allow-shlib-undefined PARENT_SCOPE)
  endif()
  set(Torch_FOUND ${Torch_FOUND} PARENT_SCOPE)
endfunction()
