# What we build against. libtorch comes from PENSTOCK_TORCH (the directory of the wheel or of an unpacked libtorch).

find_package(Threads REQUIRED)

if(PENSTOCK_TORCH_SIDE)
  set(PENSTOCK_TORCH "$ENV{PENSTOCK_TORCH}" CACHE PATH "Directory of the torch wheel or of libtorch")
  if(PENSTOCK_TORCH)
    list(PREPEND CMAKE_PREFIX_PATH ${PENSTOCK_TORCH})
  endif()
  if(PROJECT_IS_TOP_LEVEL)
    # Torch's config warns that the wheel has no libkineto, which nobody links; a name to find ends the warning.
    set(kineto_LIBRARY torch CACHE INTERNAL "")
  endif()
  # GLOBAL: who adds us with add_subdirectory sees the targets as well.
  find_package(Torch 2.13 QUIET GLOBAL)
  if(NOT Torch_FOUND)
    message(FATAL_ERROR "libtorch 2.13 was not found. Run ./dev build, or pass -DPENSTOCK_TORCH=<directory of torch>, "
                        "or -DPENSTOCK_TORCH_SIDE=OFF for the torch-free half.")
  endif()
  # The wheel holds Gloo's code but not its headers; Debian's libgloo-dev has them. Only the headers are used.
  find_path(PENSTOCK_GLOO_INCLUDE gloo/context.h)
  if(NOT PENSTOCK_GLOO_INCLUDE)
    message(FATAL_ERROR "Gloo's headers were not found: apt-get install libgloo-dev")
  endif()
endif()

if(PENSTOCK_TOOLS)
  find_package(CLI11 REQUIRED)
  find_path(PENSTOCK_TOMLPP_INCLUDE toml++/toml.h REQUIRED)
endif()
if(PENSTOCK_TESTS)
  find_package(GTest REQUIRED)
endif()
