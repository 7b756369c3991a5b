// Checks output paths.
#include "train/preflight/output_paths.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <unistd.h>

#include <filesystem>

namespace penstock::tool {

namespace fs = std::filesystem;

std::string make_output_directory(const std::string& path, const std::string& option) {
  std::error_code error;
  if (fs::is_directory(path, error)) return {};
  if (fs::exists(path, error))
    throw UsageError(option + " " + quote(path, 200) + " is not a directory", {}, "give a directory");
  fs::create_directories(path, error);
  if (error)
    throw UsageError(option + ": cannot create the directory " + quote(path, 200) + ": " + error.message());
  return "created the directory " + path;
}

bool check_output_directory(const std::string& path, const std::string& option) {
  std::error_code error;
  if (fs::is_directory(path, error)) return false;
  if (fs::exists(path, error))
    throw UsageError(option + " " + quote(path, 200) + " is not a directory", {}, "give a directory");
  fs::path parent = fs::absolute(path);
  while (!fs::exists(parent, error) && parent.has_relative_path()) parent = parent.parent_path();
  const bool directory = fs::is_directory(parent, error);
  if (!directory || access(parent.c_str(), W_OK | X_OK) != 0)
    throw UsageError(option + ": cannot create the directory " + quote(path, 200) + ": " +
                     quote(parent.string(), 200) + (directory ? " is not writable" : " is not a directory"));
  return true;
}

void require_output_directory(const std::string& path, const std::string& option) {
  if (path.empty() || path == "-") return;
  std::error_code error;
  if (fs::is_directory(path, error))
    throw UsageError(option + " " + quote(path, 200) + " is a directory", {}, "name a file in it");
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, error))
    throw UsageError(option + ": there is no directory " + quote(folder.string(), 200) + " to write to", {},
                     "create it, or choose another " + option);
}

void check_safetensors_output(const std::string& path, const std::string& option) {
  require_output_directory(path, option);
  if (!to_lower(path).ends_with(".safetensors"))
    throw UsageError(option + " " + quote(path, 200) + " does not end in .safetensors", {},
                     "use a name such as FILE.safetensors");
}

}  // namespace penstock::tool
