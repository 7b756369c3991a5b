# `cmake --install`: headers, libraries, tools with their manual pages and completions, a package config and .pc files. The only absolute
# path in them is that of libtorch, so the installed tree can be moved. With PENSTOCK_PORTABLE there is none: libtorch is in penstock/torch of
# the library directory, or PENSTOCK_TORCH names it. The libraries are exported separately: penstock::plan does not need libtorch. The
# components `tool`, `torch` and `dev` are the packages of PenstockPackage.cmake.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)

# RPATHs relative to the installed file, so that shared libraries are found after a move. That of libtorch is set explicitly, because
# CMake drops directories inside the checkout, such as .venv.
file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set(lib_rpath "")   # from a library to libtorch
set(tool_rpath "")  # from a tool to libtorch
set(config_torch "")  # for penstockConfig.cmake
set(pc_torch "")      # for the .pc files
if(PENSTOCK_TORCH_SIDE AND PENSTOCK_PORTABLE)
  set(lib_rpath "$ORIGIN/penstock/torch/lib")
  set(tool_rpath "$ORIGIN/${bin_to_lib}/penstock/torch/lib")
  set(config_torch "\${PACKAGE_PREFIX_DIR}/${CMAKE_INSTALL_LIBDIR}/penstock/torch")
  set(pc_torch "\${libdir}/penstock/torch")
elseif(PENSTOCK_TORCH_SIDE)
  set(lib_rpath ${PENSTOCK_TORCH_FOUND}/lib)
  set(tool_rpath ${lib_rpath})
  set(config_torch ${PENSTOCK_TORCH_FOUND})
  set(pc_torch ${PENSTOCK_TORCH_FOUND})
endif()

# Installs a library with its public headers, and the CMake package of its target in the file `export`. Further arguments are RPATHs.
function(penstock_install_library target export)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN;${ARGN}")
  install(TARGETS ${target} EXPORT ${export}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
          RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT dev
          FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
  install(EXPORT ${export} NAMESPACE penstock:: DESTINATION ${package_dir} COMPONENT dev)
endfunction()

function(penstock_install_tool target component)
  set(rpath "$<$<BOOL:${BUILD_SHARED_LIBS}>:$ORIGIN/${bin_to_lib}>" ${ARGN})
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${rpath}")
  install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${component})
endfunction()

penstock_install_library(penstock_plan penstockPlan)
if(PENSTOCK_TORCH_SIDE)
  penstock_install_library(penstock_load penstockLoad ${lib_rpath})
  penstock_install_library(penstock penstockTorch ${lib_rpath})
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/PenstockTorch.cmake DESTINATION ${package_dir} COMPONENT dev)
endif()
if(PENSTOCK_TOOLS)
  penstock_install_tool(penstock_tool tool)
  if(PENSTOCK_TORCH_SIDE)
    penstock_install_tool(penstock_torch_tool torch ${tool_rpath})
  endif()
  include(PenstockManual)
endif()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/penstockConfig.cmake.in penstockConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/penstockConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/penstockConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/penstockConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT dev)

# pkg-config derives the prefix from the location of the .pc file.
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
set(pc_names penstock-plan)
if(PENSTOCK_TORCH_SIDE)
  list(APPEND pc_names penstock penstock-load)
endif()
foreach(name IN LISTS pc_names)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${name}.pc.in ${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
endforeach()

# The licenses of Penstock and of the libraries compiled into it, and the changelog.
file(READ ${PROJECT_SOURCE_DIR}/LICENSE license)
string(REGEX REPLACE "^[^\n]*\n\n[^\n]*\n\n" "" license "${license}")  # without title and copyright line
string(STRIP "${license}" license)
string(REPLACE "\n\n" "\n.\n" license "${license}")
string(REPLACE "\n" "\n " license "${license}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/package/copyright.in copyright @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/copyright ${PROJECT_SOURCE_DIR}/CHANGELOG.md
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/penstock COMPONENT tool)
