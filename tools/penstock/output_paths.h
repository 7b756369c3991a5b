// Where a command writes: what cannot be written to is said before any work is done, and a directory that is
// made is told of.
#pragma once

#include <string>

namespace penstock::tool {

//! Makes a directory, with its parents, that an option names; returns `made the directory X`, or nothing if
//! it exists. UsageError if it cannot be made or the name is a file's.
std::string make_output_directory(const std::string& path, const std::string& option);

//! UsageError unless the file can be written: its directory exists, and it is not a directory itself. An
//! empty path or `-` is fine.
void require_output_directory(const std::string& path, const std::string& option);

//! The same for a safetensors file, whose name must end in .safetensors.
void check_safetensors_output(const std::string& path, const std::string& option);

}  // namespace penstock::tool
