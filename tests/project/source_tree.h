// The files of the checkout, for the tests that read them.
#pragma once

#include <string>
#include <vector>

namespace penstock::test {

struct SourceFile {
  std::string path;  //!< relative to the root, such as `src/base/text.cpp`
  std::string text;

  std::string extension() const;
  //! The module M of `src/M/…`, `tests/M/…` and `include/penstock/M/…`; empty for other files.
  std::string module() const;
  bool under(const std::string& folder) const { return path.starts_with(folder + "/"); }
  bool is_code() const { return extension() == ".h" || extension() == ".cpp"; }
  //! Whether the file belongs to the library: include/ or src/.
  bool is_library() const { return under("include") || under("src"); }
  //! The included paths, without brackets or quotes.
  std::vector<std::string> includes() const;
};

//! Every source file; not the build, and no hidden folders except .ci.
const std::vector<SourceFile>& source_tree();

//! One file; fails the test if it does not exist.
const SourceFile& source_file(const std::string& path);

}  // namespace penstock::test
