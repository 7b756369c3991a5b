# CPack: a tarball with everything and three Debian packages, one per component. None of them contains libtorch. `./dev package` makes them,
# from a build with PENSTOCK_PORTABLE.
if(BUILD_SHARED_LIBS)
  message(FATAL_ERROR "Packages contain static libraries. Build without BUILD_SHARED_LIBS.")
endif()

set(PENSTOCK_MAINTAINER "The Penstock authors <penstock@packages.invalid>" CACHE STRING "Maintainer of the packages: name and address")

set(CPACK_PACKAGE_NAME penstock)
set(CPACK_PACKAGE_VENDOR "The Penstock authors")
set(CPACK_PACKAGE_CONTACT ${PENSTOCK_MAINTAINER})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each component has its own
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
string(TOLOWER ${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR} system)
set(CPACK_PACKAGE_FILE_NAME penstock-${PROJECT_VERSION}-${system})
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_COMPONENTS_ALL tool)
if(PENSTOCK_TORCH_SIDE)
  list(APPEND CPACK_COMPONENTS_ALL torch)
endif()
list(APPEND CPACK_COMPONENTS_ALL dev)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/package/debian.cmake)
set(CPACK_PENSTOCK_COPYRIGHT ${CMAKE_CURRENT_BINARY_DIR}/copyright)
set(CPACK_PENSTOCK_CHANGELOG ${PROJECT_SOURCE_DIR}/CHANGELOG.md)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(version "${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")

set(CPACK_DEBIAN_TOOL_PACKAGE_NAME penstock)
set(CPACK_DEBIAN_TOOL_PACKAGE_SUGGESTS penstock-torch)
set(CPACK_DEBIAN_TOOL_DESCRIPTION "pipeline schedules for training: draw, check, simulate, plan
The penstock tool prints and draws pipeline schedules, validates schedule
files, predicts step times, bubbles and memory, and finds a partition and a
schedule under a memory cap. It does not need libtorch. The commands that
train and run models are in the package penstock-torch.")

set(CPACK_DEBIAN_TORCH_PACKAGE_NAME penstock-torch)
set(CPACK_DEBIAN_TORCH_PACKAGE_DEPENDS "penstock (= ${version})")
set(CPACK_DEBIAN_TORCH_DESCRIPTION "pipeline, tensor and data parallel training with libtorch
The commands of penstock that need libtorch: train and evaluate exported
models on several processes, inspect models and checkpoints, and start
programs on several ranks. libtorch ${PENSTOCK_TORCH_MINOR} is not part of this package: set
PENSTOCK_TORCH to its directory, or make /usr/lib/penstock/torch a link to it.")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libpenstock-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_SUGGESTS "penstock-torch, cmake")
set(CPACK_DEBIAN_DEV_DESCRIPTION "pipeline, tensor and data parallel training, C++ library
Static libraries, headers and the CMake package of Penstock. The library of
schedules (penstock::plan) needs only a C++20 compiler. The others
(penstock::load, penstock::penstock) need libtorch ${PENSTOCK_TORCH_MINOR}, which is not part of
this package.")

# dpkg-shlibdeps computes the versions of libc6 and libstdc++6. It must find libtorch but adds no dependency for it.
find_program(PENSTOCK_SHLIBDEPS dpkg-shlibdeps)
find_program(PENSTOCK_FILE file)
if(PENSTOCK_SHLIBDEPS AND PENSTOCK_FILE)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PENSTOCK_TORCH_FOUND}/lib)
else()
  set(CPACK_DEBIAN_TOOL_PACKAGE_DEPENDS "libc6, libgcc-s1, libstdc++6")
endif()

include(CPack)
