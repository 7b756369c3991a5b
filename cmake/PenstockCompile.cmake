# How our own code is compiled: language level, warnings, sanitizers, ccache, and the torch side's precompiled header.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")  # the hot loops are libtorch's; -O3 only costs build time
  if(PENSTOCK_SANITIZE)
    set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -DNDEBUG")
  endif()
endif()

find_program(PENSTOCK_CCACHE ccache)
if(PENSTOCK_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER AND PROJECT_IS_TOP_LEVEL)
  # Precompiled headers need the sloppiness; the cache stays inside the checkout unless the user keeps one elsewhere.
  set(cache_dir "$ENV{CCACHE_DIR}")
  if(NOT cache_dir)
    set(cache_dir ${CMAKE_CURRENT_SOURCE_DIR}/build/ccache)
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_CURRENT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DIR=${cache_dir} ${PENSTOCK_CCACHE})
endif()

# Every one of our targets passes through here.
function(penstock_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror=switch
    $<$<AND:$<BOOL:${PROJECT_IS_TOP_LEVEL}>,$<NOT:$<BOOL:${PENSTOCK_FUZZ}>>>:-Werror>
    # GCC 12 sees overlapping copies in std::string's operator+ where there are none, and warns of designated
    # initializers that leave the rest to their defaults.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-missing-field-initializers>
    # One spelling for libraries and programs alike, so that they can share a precompiled header.
    -fPIC $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess -Winvalid-pch>)
  if(PENSTOCK_SANITIZE)
    # Instrumented code makes GCC 12 see uninitialised members in std::optional, std::set and std::regex.
    target_compile_options(${target} PRIVATE -fsanitize=${PENSTOCK_SANITIZE} -fno-omit-frame-pointer -g1
      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    if(PENSTOCK_SANITIZE STREQUAL "thread")
      # libtorch's headers have a fence (in the count of a node's references) that GCC cannot instrument, and says so.
      target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
    endif()
    if(PENSTOCK_SANITIZE MATCHES "undefined")
      # The wheel's classes have no type information for us to look up, so the vptr check cannot work on them.
      target_compile_options(${target} PRIVATE -fno-sanitize=vptr -fno-sanitize-recover=undefined)
    endif()
    target_link_options(${target} PUBLIC -fsanitize=${PENSTOCK_SANITIZE})
  endif()
endfunction()

# The torch side's options plus a precompiled header. The library and the tool share `penstock_pch`; tests, examples and
# benchmarks say TEST (`penstock_pch_test`, the same header) or NN (`penstock_pch_nn`, with torch::nn), and are compiled with less
# optimisation: half of their compilation was spent on optimising libtorch's templates, while what they run is in the libraries.
set(PENSTOCK_TEST_OPTIONS $<$<CONFIG:Release>:-O1>)
function(penstock_torch_options target)
  cmake_parse_arguments(arg "TEST;NN" "" "" ${ARGN})
  penstock_compile_options(${target})
  set(owner penstock_pch)
  if(arg_TEST OR arg_NN)
    set(owner penstock_pch_test)
    target_compile_options(${target} PRIVATE ${PENSTOCK_TEST_OPTIONS})
  endif()
  if(arg_NN)
    set(owner penstock_pch_nn)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
endfunction()

# Makes such an owner; further arguments are options of the compiler.
function(penstock_add_pch target header)
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/src/pch.cpp)
  target_link_libraries(${target} PRIVATE penstock::torch Threads::Threads)
  penstock_compile_options(${target})
  target_compile_options(${target} PRIVATE ${ARGN})
  # Found by the include path, so that the generated header names no place of this machine.
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_precompile_headers(${target} PRIVATE <${header}>)
endfunction()

# Half of a file's time on the torch side goes into templates of libtorch's headers that GCC instantiates anew for every
# file, whether used or not; so four small files are compiled as one (adr/0010).
function(penstock_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${PENSTOCK_UNITY} UNITY_BUILD_BATCH_SIZE 4)
  # Types of an unnamed namespace may be members of a file's own classes, though GCC then takes the file for a header.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()
