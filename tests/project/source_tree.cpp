// Reads the files of the checkout once.
#include "source_tree.h"

#include "support/program.h"

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <stdexcept>

namespace penstock::test {
namespace fs = std::filesystem;

std::string SourceFile::extension() const {
  return fs::path(path).extension().string();
}

std::string SourceFile::module() const {
  static const std::regex pattern("^(src|tests|include/penstock)/([a-z_]+)/.*");
  std::smatch match;
  return std::regex_match(path, match, pattern) ? match[2].str() : "";
}

std::vector<std::string> SourceFile::includes() const {
  static const std::regex line("(^|\n)[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"]+)[>\"]");
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it)
    found.push_back((*it)[2]);
  return found;
}

const std::vector<SourceFile>& source_tree() {
  static const std::vector<SourceFile> files = [] {
    std::vector<SourceFile> found;
    const fs::path root = PENSTOCK_SOURCE_DIR;
    for (fs::recursive_directory_iterator it(root), end; it != end; ++it) {
      const std::string name = it->path().filename().string();
      if (it->is_directory()) {
        const bool hidden = name.starts_with(".") && name != ".ci";
        const bool build = name.starts_with("build") && it.depth() == 0;
        if (hidden || build || name == "__pycache__") it.disable_recursion_pending();
        continue;
      }
      if (name == ".git" || !it->is_regular_file()) continue;
      found.push_back({fs::relative(it->path(), root).string(), slurp(it->path().string())});
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
    return found;
  }();
  return files;
}

const SourceFile& source_file(const std::string& path) {
  for (const SourceFile& file : source_tree()) {
    if (file.path == path) return file;
  }
  throw std::runtime_error("there is no file " + path);
}

}  // namespace penstock::test
