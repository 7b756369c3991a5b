# The entry of scikit-build-core: settings of the root project for a wheel. Each of them can be changed, for example with
# `pip install -C cmake.define.PENSTOCK_TORCH_SIDE=OFF`.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

foreach(part TESTS EXAMPLES BENCH INSTALL)
  set(PENSTOCK_${part} OFF CACHE BOOL "Not a part of a wheel")
endforeach()
foreach(part PYTHON UNITY)
  set(PENSTOCK_${part} ON CACHE BOOL "A part of every wheel")
endforeach()
set(PENSTOCK_WHEEL ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")  # as in the root project

# libtorch and the headers are those of installed Python packages.
include(${CMAKE_CURRENT_LIST_DIR}/python.cmake)
penstock_python_package(torch torch)
set(PENSTOCK_TORCH "${torch}" CACHE PATH "Directory of the torch package")
option(PENSTOCK_TORCH_SIDE "Build the parts on libtorch" ON)
if(PENSTOCK_TORCH_SIDE AND NOT PENSTOCK_TORCH)
  message(FATAL_ERROR "${Python_EXECUTABLE} has no package torch. Install it first: pip install torch==2.13.0. "
    "-C cmake.define.PENSTOCK_TORCH_SIDE=OFF builds a package with schedules and plans only.")
endif()
penstock_python_package(nlohmann_json json)
if(json)
  set(PENSTOCK_JSON_INCLUDE "${json}/include" CACHE PATH "Directory of nlohmann/json.hpp")
endif()
set(PENSTOCK_GLOO_INCLUDE "${CMAKE_CURRENT_SOURCE_DIR}/../src/comm/transport/gloo_names" CACHE PATH "Directory of gloo/context.h")

# Only the tools need CLI11 and toml++, which no Python package provides.
find_package(CLI11 QUIET)
find_path(PENSTOCK_TOMLPP_INCLUDE toml++/toml.h)
if(CLI11_FOUND AND PENSTOCK_TOMLPP_INCLUDE)
  option(PENSTOCK_TOOLS "Build the penstock command-line tool" ON)
elseif(NOT DEFINED PENSTOCK_TOOLS)
  message(WARNING "CLI11 or toml++ was not found, so the package is built without the command-line tool. "
    "On Debian, install libcli11-dev and libtomlplusplus-dev.")
endif()

add_subdirectory(${CMAKE_CURRENT_SOURCE_DIR}/.. penstock)
