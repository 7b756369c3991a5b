// Makes the dynamic loader find libtorch for penstock-torch.
#pragma once

#include <filesystem>
#include <string>

namespace penstock::tool {

//! Prepares the environment for the start of the penstock-torch in `directory`. PENSTOCK_TORCH, if set,
//! selects the libtorch. Otherwise the loader finds it in the RUNPATH of the program, in LD_LIBRARY_PATH or
//! among the libraries of the system. Throws Error, which names `command`, if there is none, or if it
//! is not of the minor version that penstock-torch was built with.
void expose_libtorch(const std::filesystem::path& directory, const std::string& command);

//! Undoes the change of LD_LIBRARY_PATH. Programs that `penstock run` starts bring their own libtorch.
void restore_library_path();

}  // namespace penstock::tool
