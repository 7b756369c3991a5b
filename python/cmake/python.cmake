# Functions that find Python, the headers for extension modules, and files of installed Python packages.

# Sets `directory` to the directory of an installed Python package, or to an empty string. Does not import the package. pip builds in an
# environment that it sets up with PYTHONPATH and that hides the installed packages; with -I, Python ignores this variable and finds them.
function(penstock_python_package package directory)
  foreach(option -c -Ic)
    execute_process(
      COMMAND ${Python_EXECUTABLE} ${option}
        "import importlib.util as u, os; s = u.find_spec('${package}'); print(os.path.dirname(s.origin) if s and s.origin else '', end='')"
      OUTPUT_VARIABLE found ERROR_QUIET)
    if(found)
      break()
    endif()
  endforeach()
  set(${directory} "${found}" PARENT_SCOPE)
endfunction()

# Finds a Python with headers (Python_EXECUTABLE, Python::Module) and pybind11's headers, and adds the target penstock::pybind11. Sets
# `problem` to the reason if there is none. The Python of a virtual environment is used if its torch is the libtorch of the build.
macro(penstock_find_python problem)
  set(${problem} "")
  if(NOT Python_EXECUTABLE AND PENSTOCK_TORCH_FOUND AND EXISTS "${PENSTOCK_TORCH_FOUND}/../../../../bin/python3")
    # Not resolved: Python detects a virtual environment by the path it is started with.
    get_filename_component(python "${PENSTOCK_TORCH_FOUND}/../../../../bin/python3" ABSOLUTE)
    set(Python_EXECUTABLE "${python}")
  endif()
  find_package(Python 3.10 COMPONENTS Interpreter Development.Module QUIET)
  if(NOT Python_Development.Module_FOUND)
    set(${problem} "no Python 3.10 or newer with headers was found (on Debian: python3-dev)")
  else()
    penstock_find_pybind11(${problem})
  endif()
endmacro()

# pybind11 is a part of the torch package. Modules without torch see its headers only.
function(penstock_find_pybind11 problem)
  set(torch "${PENSTOCK_TORCH_FOUND}")
  if(NOT torch)
    set(torch "${PENSTOCK_TORCH}")
  endif()
  if(NOT torch)
    penstock_python_package(torch torch)
  endif()
  if(NOT EXISTS "${torch}/include/pybind11/pybind11.h")
    set(${problem} "the headers of pybind11 were not found; they are a part of the torch package" PARENT_SCOPE)
    return()
  endif()
  set(headers ${CMAKE_CURRENT_BINARY_DIR}/headers)
  file(MAKE_DIRECTORY ${headers})
  file(CREATE_LINK "${torch}/include/pybind11" ${headers}/pybind11 SYMBOLIC)
  add_library(penstock_pybind11 INTERFACE)
  add_library(penstock::pybind11 ALIAS penstock_pybind11)
  target_include_directories(penstock_pybind11 SYSTEM INTERFACE ${headers})
endfunction()
