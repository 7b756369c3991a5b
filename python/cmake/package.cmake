# Functions that assemble the package: extension modules, Python files, the tools.

set(package_dir ${PROJECT_BINARY_DIR}/python/penstock)

# penstock_python_module(NAME [TORCH] sources…): the extension module penstock.NAME. It is built into the package in the build directory,
# and becomes a part of the wheel. TORCH: the module needs libtorch, which is next to the package in the same environment.
function(penstock_python_module name)
  cmake_parse_arguments(arg "TORCH" "" "" ${ARGN})
  set(target penstock_python${name})
  Python_add_library(${target} MODULE WITH_SOABI ${arg_UNPARSED_ARGUMENTS})
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${package_dir}
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE OFF)  # penstock_compile_options adds -fPIC
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/python/ext)
  target_link_libraries(${target} PRIVATE penstock::pybind11)
  penstock_compile_options(${target})
  if(arg_TORCH)
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib")
  endif()
  if(PENSTOCK_WHEEL)
    install(TARGETS ${target} LIBRARY DESTINATION penstock)
  endif()
endfunction()

# Links the Python files and the directory of the tools into the package in the build directory, so that an edited file needs no build.
function(penstock_link_package)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/src/penstock)
  file(GLOB_RECURSE files RELATIVE ${source} CONFIGURE_DEPENDS ${source}/*.py ${source}/*.pyi ${source}/py.typed)
  # Links of files that were removed.
  file(GLOB_RECURSE links LIST_DIRECTORIES FALSE RELATIVE ${package_dir} ${package_dir}/*.py ${package_dir}/*.pyi)
  foreach(link IN LISTS links)
    if(NOT link IN_LIST files)
      file(REMOVE ${package_dir}/${link})
    endif()
  endforeach()
  foreach(file IN LISTS files)
    cmake_path(GET file PARENT_PATH folder)
    file(MAKE_DIRECTORY ${package_dir}/${folder})
    file(CREATE_LINK ${source}/${file} ${package_dir}/${file} SYMBOLIC)
  endforeach()
  if(PENSTOCK_TOOLS)
    file(CREATE_LINK ${PROJECT_BINARY_DIR}/bin ${package_dir}/bin SYMBOLIC)
  endif()
endfunction()

# The tools in the wheel. scikit-build-core adds the Python files.
function(penstock_install_package)
  if(NOT PENSTOCK_TOOLS)
    return()
  endif()
  install(TARGETS penstock_tool RUNTIME DESTINATION penstock/bin)
  if(PENSTOCK_TORCH_SIDE)
    set_target_properties(penstock_torch_tool PROPERTIES INSTALL_RPATH "$ORIGIN/../../torch/lib")
    install(TARGETS penstock_torch_tool RUNTIME DESTINATION penstock/bin)
  endif()
endfunction()
