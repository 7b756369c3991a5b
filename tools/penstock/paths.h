// Checks of the paths that a user gives, with a suggestion where one is misspelt.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::tool {

//! `did you mean X?` for the nearest of the known words, one that is a beginning of it or the other way
//! round; else `otherwise`.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known,
                         const std::string& otherwise = "");

//! UsageError unless it is a file that can be read: names a similar file where there is none, and, of a
//! directory, the file with this extension (`.pt2`) that it holds.
void check_input_file(const std::string& path, std::string_view extension = "");

//! UsageError, with the option's name, where no file can be written: the path is a directory, the one that it
//! lies in cannot be made or written, or it is one of the files that are read.
void check_output_file(const std::string& option, const std::string& path,
                       const std::vector<std::string>& inputs);

}  // namespace penstock::tool
