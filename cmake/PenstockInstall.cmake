# `cmake --install`: headers, libraries, tools, a package config and .pc files. The only absolute path in them is that of libtorch, so the
# installed tree can be moved. The libraries are exported separately: penstock::plan does not need libtorch.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)

# RPATHs relative to the installed file, so that shared libraries are found after a move. That of libtorch is set explicitly, because
# CMake drops directories inside the checkout, such as .venv.
file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set(torch_lib "")
if(PENSTOCK_TORCH_SIDE)
  set(torch_lib ${PENSTOCK_TORCH_FOUND}/lib)
endif()

# Installs a library with its public headers, and the CMake package of its target in the file `export`. Further arguments are RPATHs.
function(penstock_install_library target export)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN;${ARGN}")
  install(TARGETS ${target} EXPORT ${export}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
          FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT ${export} NAMESPACE penstock:: DESTINATION ${package_dir})
endfunction()

function(penstock_install_tool target)
  set(rpath "$<$<BOOL:${BUILD_SHARED_LIBS}>:$ORIGIN/${bin_to_lib}>" ${ARGN})
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${rpath}")
  install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

penstock_install_library(penstock_plan penstockPlan)
if(PENSTOCK_TORCH_SIDE)
  penstock_install_library(penstock_load penstockLoad ${torch_lib})
  penstock_install_library(penstock penstockTorch ${torch_lib})
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/PenstockTorch.cmake DESTINATION ${package_dir})
endif()
if(PENSTOCK_TOOLS)
  penstock_install_tool(penstock_tool)
  if(PENSTOCK_TORCH_SIDE)
    penstock_install_tool(penstock_torch_tool ${torch_lib})
  endif()
endif()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/penstockConfig.cmake.in penstockConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/penstockConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/penstockConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/penstockConfigVersion.cmake
        DESTINATION ${package_dir})

# pkg-config derives the prefix from the location of the .pc file.
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
set(pc_names penstock-plan)
if(PENSTOCK_TORCH_SIDE)
  list(APPEND pc_names penstock penstock-load)
endif()
foreach(name IN LISTS pc_names)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${name}.pc.in ${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
