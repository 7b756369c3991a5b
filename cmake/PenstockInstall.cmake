# `cmake --install`: headers, libraries, tools, a package config and .pc files. The only path of this machine that they hold is
# that of libtorch, which stays where it is; so the installed tree may be moved. The two halves are exported apart: a user of penstock::plan needs no libtorch.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/penstock DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")
install(TARGETS penstock_plan EXPORT penstockPlan ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT penstockPlan NAMESPACE penstock:: DESTINATION ${package_dir})
if(PENSTOCK_TORCH_SIDE)
  install(TARGETS penstock EXPORT penstockTorch ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT penstockTorch NAMESPACE penstock:: DESTINATION ${package_dir})
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/PenstockTorch.cmake DESTINATION ${package_dir})
endif()

if(PENSTOCK_TOOLS)
  install(TARGETS penstock_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(PENSTOCK_TORCH_SIDE)
    # The program remembers where libtorch is. It is named here, since CMake's own search would leave out what lies inside the
    # checkout, as a .venv does.
    set_target_properties(penstock_torch_tool PROPERTIES INSTALL_RPATH ${PENSTOCK_TORCH_FOUND}/lib)
    install(TARGETS penstock_torch_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endif()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/penstockConfig.cmake.in penstockConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/penstockConfigVersion.cmake
                                 COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/penstockConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/penstockConfigVersion.cmake
        DESTINATION ${package_dir})

# pkg-config finds the prefix from the place of the .pc file itself.
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
set(pc_names penstock-plan)
if(PENSTOCK_TORCH_SIDE)
  list(APPEND pc_names penstock)
endif()
foreach(name IN LISTS pc_names)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${name}.pc.in ${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
