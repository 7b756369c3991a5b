// Checks the output paths of a command before any work is done, and creates output directories.
#pragma once

#include <string>

namespace penstock::tool {

//! Creates the directory named by an option, with its parents. Returns `created the directory X`, or an empty
//! string if it exists. Throws UsageError if it cannot be created or is a file.
std::string make_output_directory(const std::string& path, const std::string& option);

//! Throws UsageError if `make_output_directory` would, but creates nothing. Returns whether it would create
//! the directory.
bool check_output_directory(const std::string& path, const std::string& option);

//! Throws UsageError unless the parent directory of the file exists and the path itself is not a directory.
//! Accepts an empty path and `-`.
void require_output_directory(const std::string& path, const std::string& option);

//! Same check for a safetensors file. Its name must also end in .safetensors.
void check_safetensors_output(const std::string& path, const std::string& option);

}  // namespace penstock::tool
