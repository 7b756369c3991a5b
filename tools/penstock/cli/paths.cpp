// Checks paths given by the user.
#include "cli/paths.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace penstock::tool {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> entries_of(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(directory.empty() ? "." : directory, error), end; !error && it != end;
       it.increment(error))
    entries.push_back(it->path().filename());
  return entries;
}

std::string hint_in_directory(const std::string& path, std::string_view extension) {
  std::vector<std::string> fitting;
  for (const fs::path& entry : entries_of(path))
    if (!extension.empty() && entry.extension() == extension) fitting.push_back((path / entry).string());
  if (fitting.size() == 1) return did_you_mean(fitting[0], fitting);
  return "name a file" + (extension.empty() ? "" : " that ends in " + std::string(extension)) +
         (fitting.empty() ? "" : str_cat("; the directory contains ", fitting.size(), " of them"));
}

std::string hint_for_missing(const fs::path& path) {
  std::vector<std::string> names;
  for (const fs::path& entry : entries_of(path.parent_path())) names.push_back(entry.string());
  const fs::path parent = path.parent_path();
  const std::string prefix = parent.empty() ? "" : (parent / "").string();
  if (std::string hint = did_you_mean(path.filename().string(), names, "", prefix); !hint.empty())
    return hint;
  std::error_code error;
  if (!parent.empty() && !fs::is_directory(parent, error))
    return "there is no directory " + quote(parent.string(), 200) + "; check the path";
  return "check the name; relative paths start at " + fs::current_path(error).string();
}

}  // namespace

void check_input_file(const std::string& path, std::string_view extension) {
  std::error_code error;
  if (fs::is_directory(path, error))
    throw UsageError(quote(path, 200) + " is a directory, not a file", {},
                     hint_in_directory(path, extension));
  if (!fs::exists(path, error))
    throw UsageError("there is no file " + quote(path, 200), {}, hint_for_missing(path));
  if (access(path.c_str(), R_OK) != 0)
    throw UsageError("cannot read " + quote(path, 200) + ": " + std::strerror(errno), {},
                     "check its permissions");
}

void check_output_file(const std::string& option, const std::string& path,
                       const std::vector<std::string>& inputs) {
  if (path.empty()) return;
  const std::string what = option + " " + quote(path, 200);
  std::error_code error;
  if (fs::is_directory(path, error))
    throw UsageError(what + " is a directory, not a file", {}, "name a file in it");
  for (const std::string& input : inputs)
    if (!input.empty() && fs::equivalent(path, input, error) && !error)
      throw UsageError(what + " would overwrite an input file", {}, "choose another file");
  const bool exists = fs::exists(path, error);
  if (exists && access(path.c_str(), W_OK) != 0)
    throw UsageError(what + " cannot be written: " + std::strerror(errno), {}, "choose another file");
  if (exists) return;
  fs::path parent = fs::absolute(path).parent_path();
  while (!fs::exists(parent, error) && parent.has_relative_path()) parent = parent.parent_path();
  const bool directory = fs::is_directory(parent, error);
  if (!directory || access(parent.c_str(), W_OK | X_OK) != 0)
    throw UsageError(what + " cannot be written: " + quote(parent.string(), 200) +
                         (directory ? " is not writable" : " is not a directory"),
                     {}, "choose another file");
}

}  // namespace penstock::tool
