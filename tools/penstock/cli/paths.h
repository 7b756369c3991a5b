// Checks paths given by the user.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::tool {

//! Throws UsageError unless `path` is a readable file. The hint names a similar file if it does not exist, or
//! the file with this extension (`.pt2`) if `path` is a directory.
void check_input_file(const std::string& path, std::string_view extension = "");

//! Throws UsageError, naming the option, if the file cannot be written: the path is a directory, its parent
//! cannot be created or written, or it is one of the input files.
void check_output_file(const std::string& option, const std::string& path,
                       const std::vector<std::string>& inputs);

}  // namespace penstock::tool
