# Imported targets for libtorch 2.13 to 2.15. Link penstock::torch, which brings in penstock::torch_cpu and penstock::c10, and for a CUDA build
# penstock::torch_cuda and penstock::c10_cuda. Works with the `torch` directory of any wheel and with an unpacked libtorch.
# Torch's own CMake package is not used: for a CUDA build it requires a CUDA toolkit, which Penstock does not need. The targets have their own
# names, so a project can call find_package(Torch) as well. This file is also installed, for penstockConfig.cmake.

# The supported versions of libtorch: from the first to the second minor version.
set(PENSTOCK_TORCH_FIRST 2.13)
set(PENSTOCK_TORCH_LAST 2.15)

# Sets `version` to the version of the libtorch in a directory, or to an empty string if there is none.
function(penstock_torch_version directory version)
  set(${version} "" PARENT_SCOPE)
  set(file "${directory}/share/cmake/Torch/TorchConfigVersion.cmake")
  if(EXISTS "${file}" AND EXISTS "${directory}/lib/libtorch_cpu.so" AND EXISTS "${directory}/include/ATen/ATen.h")
    file(STRINGS "${file}" line REGEX "PACKAGE_VERSION \"" LIMIT_COUNT 1)
    string(REGEX REPLACE ".*\"(.*)\".*" "\\1" found "${line}")
    set(${version} "${found}" PARENT_SCOPE)
  endif()
endfunction()

# Sets `supported` to whether a version of libtorch is supported.
function(penstock_torch_supported version supported)
  set(${supported} FALSE PARENT_SCOPE)
  if(version MATCHES "^([0-9]+\\.[0-9]+)\\." AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL PENSTOCK_TORCH_FIRST AND
     CMAKE_MATCH_1 VERSION_LESS_EQUAL PENSTOCK_TORCH_LAST)
    set(${supported} TRUE PARENT_SCOPE)
  endif()
endfunction()

# Sets `directory` to the directory of a supported libtorch, or `problem` to an error message. If PENSTOCK_TORCH (variable, then environment) is
# set, only that directory is tried. Otherwise the first of Torch_DIR, CMAKE_PREFIX_PATH and `remembered` that contains one is used.
function(penstock_find_torch remembered directory problem)
  set(${directory} "" PARENT_SCOPE)
  set(${problem} "" PARENT_SCOPE)
  set(named "${PENSTOCK_TORCH}")
  if(NOT named)
    set(named "$ENV{PENSTOCK_TORCH}")
  endif()
  if(named)
    get_filename_component(candidates "${named}" ABSOLUTE)
    set(what "PENSTOCK_TORCH=${named} is not the directory of a libtorch ${PENSTOCK_TORCH_FIRST} to ${PENSTOCK_TORCH_LAST}")
  else()
    if(Torch_DIR)
      get_filename_component(candidates "${Torch_DIR}/../../.." ABSOLUTE)
    endif()
    string(REPLACE ":" ";" prefixes "$ENV{CMAKE_PREFIX_PATH}")
    list(APPEND candidates ${CMAKE_PREFIX_PATH} ${prefixes} ${remembered})
    set(what "libtorch ${PENSTOCK_TORCH_FIRST} to ${PENSTOCK_TORCH_LAST} was not found")
    if(remembered)
      string(APPEND what ", neither in CMAKE_PREFIX_PATH nor in ${remembered}")
    endif()
  endif()
  foreach(candidate IN LISTS candidates)
    penstock_torch_version("${candidate}" version)
    penstock_torch_supported("${version}" supported)
    if(supported)
      set(${directory} "${candidate}" PARENT_SCOPE)
      return()
    elseif(version)
      string(APPEND what "; ${candidate} is version ${version}")
    endif()
  endforeach()
  set(${problem} "${what}. Set PENSTOCK_TORCH to the `torch` directory of the Python package, or to an unpacked libtorch." PARENT_SCOPE)
endfunction()

# Sets `definitions` to the compile definitions that users of a libtorch library need, as recorded by libtorch's build. They select code in its
# headers.
function(penstock_torch_definitions directory library definitions)
  file(READ "${directory}/share/cmake/Caffe2/Caffe2Targets.cmake" text)
  set(${definitions} "" PARENT_SCOPE)
  if(text MATCHES "set_target_properties\\(${library} PROPERTIES\n  INTERFACE_COMPILE_DEFINITIONS \"([^\"]*)\"")
    set(${definitions} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  endif()
endfunction()

# Creates the targets for the libtorch in `directory`.
function(penstock_import_torch directory)
  if(TARGET penstock::torch)
    return()
  endif()
  set(includes "${directory}/include" "${directory}/include/torch/csrc/api/include")
  set(libraries "")
  foreach(library c10 torch_cpu c10_cuda torch_cuda)
    set(file "${directory}/lib/lib${library}.so")
    if(NOT EXISTS "${file}")
      continue()
    endif()
    penstock_torch_definitions("${directory}" ${library} definitions)
    add_library(penstock::${library} SHARED IMPORTED GLOBAL)
    set_target_properties(penstock::${library} PROPERTIES
      IMPORTED_LOCATION "${file}" IMPORTED_SONAME "lib${library}.so"
      INTERFACE_INCLUDE_DIRECTORIES "${includes}" INTERFACE_COMPILE_DEFINITIONS "${definitions}")
    list(PREPEND libraries penstock::${library})
  endforeach()
  # Kernels register themselves when their library is loaded, so it must be linked even if no symbol of it is used. Code that calls the CUDA
  # parts of libtorch links penstock::torch_cuda itself and gets its definitions that way.
  set(cuda ${libraries})
  list(FILTER cuda INCLUDE REGEX cuda)
  list(FILTER libraries EXCLUDE REGEX cuda)
  list(TRANSFORM cuda REPLACE "(.+)" "$<LINK_ONLY:\\1>")
  add_library(penstock::torch INTERFACE IMPORTED GLOBAL)
  set_target_properties(penstock::torch PROPERTIES
    INTERFACE_LINK_LIBRARIES "-Wl,--no-as-needed,\"${directory}/lib/libtorch.so\" -Wl,--as-needed;${libraries};${cuda}")
endfunction()

# Sets `includes` to the directories of the headers that code on NCCL needs, or `problem` to why there is no NCCL. The headers are those of the
# nvidia packages next to the torch package, or of a CUDA toolkit and NCCL in CUDA_HOME or /usr/local/cuda.
function(penstock_find_nccl directory includes problem)
  set(${includes} "" PARENT_SCOPE)
  set(${problem} "" PARENT_SCOPE)
  set(definitions "")
  if(TARGET penstock::torch_cuda)
    get_target_property(definitions penstock::torch_cuda INTERFACE_COMPILE_DEFINITIONS)
  endif()
  if(NOT "USE_C10D_NCCL" IN_LIST definitions)
    set(${problem} "this libtorch has no NCCL" PARENT_SCOPE)
    return()
  endif()
  file(GLOB beside "${directory}/../nvidia/cu[0-9]*/include" "${directory}/../nvidia/cu[0-9]*/include/cccl" "${directory}/../nvidia/nccl/include")
  set(places ${beside} "$ENV{CUDA_HOME}/include" "$ENV{CUDA_HOME}/include/cccl" /usr/local/cuda/include /usr/local/cuda/include/cccl)
  set(found "")
  foreach(header nccl.h cuda_runtime_api.h cusparse.h crt/host_defines.h nv/target)
    string(MAKE_C_IDENTIFIER "PENSTOCK_INCLUDE_${header}" variable)
    find_path(${variable} ${header} HINTS ${places})
    mark_as_advanced(${variable})
    if(NOT ${variable})
      set(${problem} "the header ${header} was not found; install the packages nvidia-nccl-cu13, nvidia-cuda-runtime, nvidia-cusparse, nvidia-cuda-crt and nvidia-cuda-cccl next to torch, or set CUDA_HOME" PARENT_SCOPE)
      return()
    endif()
    list(APPEND found "${${variable}}")
  endforeach()
  list(REMOVE_DUPLICATES found)
  set(${includes} "${found}" PARENT_SCOPE)
endfunction()
