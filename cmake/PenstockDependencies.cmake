# Finds the dependencies. PENSTOCK_TORCH is the directory of libtorch (of the wheel or of an unpacked archive).

find_package(Threads REQUIRED)

if(EMSCRIPTEN)
  # Of the headers in the system's include directory, Emscripten may see only those of the JSON parser.
  find_path(PENSTOCK_JSON_INCLUDE nlohmann/json.hpp PATHS /usr/include /usr/local/include NO_CMAKE_FIND_ROOT_PATH REQUIRED)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/system)
  file(CREATE_LINK ${PENSTOCK_JSON_INCLUDE}/nlohmann ${PROJECT_BINARY_DIR}/system/nlohmann SYMBOLIC)
  include_directories(SYSTEM ${PROJECT_BINARY_DIR}/system)
else()
  find_path(PENSTOCK_JSON_INCLUDE nlohmann/json.hpp)
  if(NOT PENSTOCK_JSON_INCLUDE)
    message(FATAL_ERROR "The headers of nlohmann-json were not found. Install them with: apt-get install nlohmann-json3-dev")
  endif()
endif()

include(PenstockTorch)
list(GET PENSTOCK_TORCH_VERSIONS 0 PENSTOCK_TORCH_MINOR)  # of the libtorch that is used; in a build without it, the default
if(PENSTOCK_TORCH_SIDE)
  set(PENSTOCK_TORCH "$ENV{PENSTOCK_TORCH}" CACHE PATH "Directory of the torch wheel or of libtorch")
  penstock_find_torch("" PENSTOCK_TORCH_FOUND problem)
  if(problem)
    message(FATAL_ERROR "${problem} Or run ./dev build, which sets it. -DPENSTOCK_TORCH_SIDE=OFF builds only the torch-free half.")
  endif()
  penstock_import_torch("${PENSTOCK_TORCH_FOUND}")
  penstock_torch_version("${PENSTOCK_TORCH_FOUND}" torch_version)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" PENSTOCK_TORCH_MINOR "${torch_version}")
  # The wheel contains Gloo but not its headers. They come from Debian's libgloo-dev; its library is not used. Without it, declarations of the
  # few names that libtorch's header mentions are enough.
  find_path(PENSTOCK_GLOO_INCLUDE gloo/context.h PATHS ${PROJECT_SOURCE_DIR}/src/comm/transport/gloo_names)
endif()

if(PENSTOCK_TOOLS)
  find_package(CLI11 REQUIRED)
  find_path(PENSTOCK_TOMLPP_INCLUDE toml++/toml.h REQUIRED)
endif()
if(PENSTOCK_TESTS)
  find_package(GTest REQUIRED)
endif()
