# Functions that define the libraries and list their public headers.

# penstock_add_library(TARGET EXPORTED_NAME): a library that others link as penstock::EXPORTED_NAME. It is static, or shared with
# BUILD_SHARED_LIBS. Its modules add their sources and headers.
function(penstock_add_library target name)
  add_library(${target})
  add_library(penstock::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${name}
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}  # before 1.0, a minor version may break the ABI
    # The flags of a shared library equal those of a static one, for the precompiled header and the compiler cache.
    DEFINE_SYMBOL ""
    POSITION_INDEPENDENT_CODE OFF)  # penstock_compile_options adds -fPIC
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include)
endfunction()

# penstock_public_headers(TARGET FOLDER header…): the headers in include/penstock/FOLDER that are installed. Use `.` for the headers
# directly in include/penstock. A test checks that no header is missing from the lists.
function(penstock_public_headers target folder)
  list(TRANSFORM ARGN PREPEND ${PROJECT_SOURCE_DIR}/include/penstock/${folder}/ OUTPUT_VARIABLE files)
  target_sources(${target} PUBLIC FILE_SET HEADERS FILES ${files})
endfunction()
