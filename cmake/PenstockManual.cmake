# The manual pages and the completion scripts of the tool. Both come from the built tool, so they describe exactly this version.
# They are left out of builds that cannot or should not run it, and without Python.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT Python3_Interpreter_FOUND OR CMAKE_CROSSCOMPILING OR PENSTOCK_SANITIZE)
  message(STATUS "No manual pages: they need Python and a tool that runs on this machine, without sanitizers")
  return()
endif()

set(manual_dir ${PROJECT_BINARY_DIR}/manual)
set(manual_tools penstock_tool)
if(PENSTOCK_TORCH_SIDE)
  list(APPEND manual_tools penstock_torch_tool)
endif()
set(completions ${manual_dir}/completions)
add_custom_command(
  OUTPUT ${manual_dir}/stamp
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${manual_dir}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${completions}
  # With PENSTOCK_PORTABLE, the tool does not know where libtorch is.
  COMMAND ${CMAKE_COMMAND} -E env PENSTOCK_TORCH=${PENSTOCK_TORCH_FOUND}
          ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/dev/man.py $<TARGET_FILE:penstock_tool> ${manual_dir}/man1
  COMMAND $<TARGET_FILE:penstock_tool> completion bash > ${completions}/penstock
  COMMAND $<TARGET_FILE:penstock_tool> completion zsh > ${completions}/_penstock
  COMMAND $<TARGET_FILE:penstock_tool> completion fish > ${completions}/penstock.fish
  COMMAND ${CMAKE_COMMAND} -E touch ${manual_dir}/stamp
  DEPENDS ${manual_tools} ${PROJECT_SOURCE_DIR}/tools/dev/man.py
  COMMENT "Writing the manual pages"
  VERBATIM)
add_custom_target(penstock_manual ALL DEPENDS ${manual_dir}/stamp)

# OPTIONAL: a build of single targets does not make them.
install(DIRECTORY ${manual_dir}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT tool OPTIONAL)
install(FILES ${completions}/penstock DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT tool OPTIONAL)
install(FILES ${completions}/_penstock DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT tool OPTIONAL)
install(FILES ${completions}/penstock.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT tool OPTIONAL)
