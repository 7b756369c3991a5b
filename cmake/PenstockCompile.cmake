# Compile options of this project: language level, warnings, sanitizers, ccache, and the precompiled header of the torch side.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")  # the hot loops are in libtorch; -O3 would only increase build time
  if(PENSTOCK_SANITIZE)
    set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -DNDEBUG")
  endif()
endif()

find_program(PENSTOCK_CCACHE ccache)
if(PENSTOCK_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER AND PROJECT_IS_TOP_LEVEL)
  # Precompiled headers need the sloppiness. The cache is inside the checkout unless CCACHE_DIR is set.
  set(cache_dir "$ENV{CCACHE_DIR}")
  if(NOT cache_dir)
    set(cache_dir ${CMAKE_CURRENT_SOURCE_DIR}/build/ccache)
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_CURRENT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DIR=${cache_dir} ${PENSTOCK_CCACHE})
endif()

# Options of every target of this project.
function(penstock_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror=switch
    $<$<AND:$<BOOL:${PENSTOCK_WERROR}>,$<NOT:$<BOOL:${PENSTOCK_FUZZ}>>>:-Werror>
    # False positives of GCC 12: overlapping copies in std::string's operator+, and designated initializers that leave
    # the other members at their defaults.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-missing-field-initializers>
    # Clang 18 and newer report such initializers too.
    $<$<CXX_COMPILER_ID:Clang>:-Wno-missing-field-initializers>
    # Clang 17 and newer report a deprecated function inside std::stable_sort of GCC 12's library.
    $<$<AND:$<CXX_COMPILER_ID:Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,17>>:-Wno-deprecated-declarations>
    # The same flags for libraries and programs, so that they can share a precompiled header. WebAssembly has no use for -fPIC.
    $<IF:$<BOOL:${EMSCRIPTEN}>,-fwasm-exceptions,-fPIC>
    $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess -Winvalid-pch>
    "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")  # for the compiler cache
  if(PENSTOCK_SANITIZE)
    # In instrumented code, GCC 12 wrongly reports uninitialized members in std::optional, std::set and std::regex.
    target_compile_options(${target} PRIVATE -fsanitize=${PENSTOCK_SANITIZE} -fno-omit-frame-pointer -g1
      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    if(PENSTOCK_SANITIZE STREQUAL "thread")
      # libtorch's headers use a fence (in the reference count of a node) that GCC cannot instrument and warns about.
      target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
    endif()
    if(PENSTOCK_SANITIZE MATCHES "undefined")
      # The vptr check needs type information that the classes of the wheel do not export.
      target_compile_options(${target} PRIVATE -fno-sanitize=vptr -fno-sanitize-recover=undefined)
    endif()
    target_link_options(${target} PUBLIC -fsanitize=${PENSTOCK_SANITIZE})
  endif()
endfunction()

# Options of the torch side, with a precompiled header. The library and the tool share `penstock_pch`. Tests and examples pass TEST
# (`penstock_pch_test`, with GoogleTest) or NN (`penstock_pch_nn`, also with torch::nn). They are not optimized: that would take a third
# of their compile time, and the code they exercise is in the libraries. Benchmarks pass BENCH and are optimized.
# GoogleTest's targets define GTEST_HAS_PTHREAD; a target that reuses a header must have the definitions of its owner.
set(PENSTOCK_TEST_OPTIONS $<$<CONFIG:Release>:-O0> -DGTEST_HAS_PTHREAD=1)
function(penstock_torch_options target)
  cmake_parse_arguments(arg "TEST;NN;BENCH" "" "" ${ARGN})
  penstock_compile_options(${target})
  set(owner penstock_pch)
  if(arg_TEST OR arg_NN)
    set(owner penstock_pch_test)
    target_compile_options(${target} PRIVATE ${PENSTOCK_TEST_OPTIONS})
  endif()
  if(arg_NN)
    set(owner penstock_pch_nn)
  elseif(arg_BENCH)
    set(owner penstock_pch_bench)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
endfunction()

# Options of the tests of the torch-free half, with a precompiled GoogleTest.
function(penstock_plan_test_options target)
  penstock_compile_options(${target})
  target_compile_options(${target} PRIVATE ${PENSTOCK_TEST_OPTIONS})
  target_precompile_headers(${target} REUSE_FROM penstock_pch_plan_test)
endfunction()

# Adds the target that owns a precompiled header, for targets that link `library`. Further arguments are compiler options.
function(penstock_add_pch target header library)
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/src/pch.cpp)
  target_link_libraries(${target} PRIVATE ${library} Threads::Threads)
  penstock_compile_options(${target})
  target_compile_options(${target} PRIVATE ${ARGN})
  # Included by search path, so that the generated header contains no absolute path.
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_precompile_headers(${target} PRIVATE <${header}>)
endfunction()

# Compiles the sources of a target in groups of up to twelve files (adr/0010). A group has files of one module only, such as src/comm, so
# adding a file recompiles no other module. Call it after the last source was added.
function(penstock_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${PENSTOCK_UNITY} UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE path)
    cmake_path(RELATIVE_PATH path BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    string(REGEX REPLACE "^([^/]+)/([^/]+)/.*" "\\1_\\2" module ${path})
    string(MAKE_C_IDENTIFIER ${module} module)
    math(EXPR group "0${count_${module}} / 12")
    math(EXPR count_${module} "0${count_${module}} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${module}_${group})
  endforeach()
  # Classes of a source file may have members whose types are in an unnamed namespace. In a unity build, GCC treats the file as a header
  # and warns.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()
