// The files of the checkout, for the tests that read them.
#pragma once

#include <string>
#include <vector>

namespace penstock::test {

struct SourceFile {
  std::string path;  //!< from the root, for example `src/base/text.cpp`
  std::string text;

  std::string extension() const;
  //! The text between the first and second slash of `src/M/…` and `tests/M/…`, M of `include/penstock/M/…`;
  //! else empty.
  std::string module() const;
  bool under(const std::string& folder) const { return path.starts_with(folder + "/"); }
  bool is_code() const { return extension() == ".h" || extension() == ".cpp"; }
  //! Whether the file belongs to the library: include/ or src/.
  bool is_library() const { return under("include") || under("src"); }
  //! What the file includes, without brackets or quotes.
  std::vector<std::string> includes() const;
};

//! Every file of ours: not the build, not hidden folders but .ci.
const std::vector<SourceFile>& source_tree();

//! One of them; fails the test if there is none.
const SourceFile& source_file(const std::string& path);

}  // namespace penstock::test
