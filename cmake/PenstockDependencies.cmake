# What we build against. libtorch comes from PENSTOCK_TORCH (the directory of the wheel or of an unpacked libtorch).

find_package(Threads REQUIRED)

if(PENSTOCK_TORCH_SIDE)
  set(PENSTOCK_TORCH "$ENV{PENSTOCK_TORCH}" CACHE PATH "Directory of the torch wheel or of libtorch")
  include(PenstockTorch)
  penstock_find_torch("" PENSTOCK_TORCH_FOUND problem)
  if(problem)
    message(FATAL_ERROR "${problem} ./dev build does so by itself; -DPENSTOCK_TORCH_SIDE=OFF builds the torch-free half alone.")
  endif()
  penstock_import_torch("${PENSTOCK_TORCH_FOUND}")
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
