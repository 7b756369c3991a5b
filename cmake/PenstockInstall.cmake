# `cmake --install`: headers, libraries, tools, a package config and .pc files. The only absolute path in them is that of libtorch, so the
# installed tree can be moved. The two halves are exported separately: penstock::plan does not need libtorch.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/penstock DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
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
    # The RPATH is set explicitly, because CMake drops directories inside the checkout, such as .venv.
    set_target_properties(penstock_torch_tool PROPERTIES INSTALL_RPATH ${PENSTOCK_TORCH_FOUND}/lib)
    install(TARGETS penstock_torch_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
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
  list(APPEND pc_names penstock)
endif()
foreach(name IN LISTS pc_names)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${name}.pc.in ${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
