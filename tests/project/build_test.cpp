// Checks the CMake lists: each module lists all of its public headers and sources, sorted.
#include "source_tree.h"

#include <penstock/version.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

namespace fs = std::filesystem;

struct HeaderList {
  std::string where;
  std::vector<std::string> paths;  //!< from the root
};

// The calls of penstock_public_headers below src.
std::vector<HeaderList> header_lists() {
  const std::regex call("\n *penstock_public_headers\\(\\w+\\s+(\\S+)\\s+([^)]*)\\)");
  std::vector<HeaderList> lists;
  for (const SourceFile& file : source_tree()) {
    if (!file.under("src") || !file.path.ends_with("/CMakeLists.txt")) continue;
    const std::string text = "\n" + file.text;
    for (std::sregex_iterator at(text.begin(), text.end(), call), end; at != end; ++at) {
      const std::string folder = (*at)[1];
      std::istringstream names((*at)[2]);
      HeaderList list{file.path, {}};
      for (std::string name; names >> name;)
        list.paths.push_back((fs::path("include/penstock") / folder / name).lexically_normal().string());
      lists.push_back(list);
    }
  }
  return lists;
}

TEST(ProjectBuild, ModulesListEveryPublicHeader) {
  std::multiset<std::string> listed, present;
  for (const HeaderList& list : header_lists()) {
    EXPECT_TRUE(std::is_sorted(list.paths.begin(), list.paths.end())) << list.where;
    for (const std::string& path : list.paths) {
      const std::string module = source_file(path).module();
      EXPECT_EQ(list.where, module.empty() ? "src/CMakeLists.txt" : "src/" + module + "/CMakeLists.txt")
          << path;
      listed.insert(path);
    }
  }
  for (const SourceFile& file : source_tree())
    // A template, such as version.h.in, is not installed itself.
    if (file.under("include") && file.extension() != ".in") present.insert(file.path);
  EXPECT_EQ(listed, present);
  EXPECT_GT(present.size(), 50U);
}

TEST(ProjectBuild, ModulesListEverySourceInSortedOrder) {
  const std::regex list("(?:target_sources|add_library|add_executable)\\(([^)]*)\\)");
  for (const SourceFile& file : source_tree()) {
    if (!(file.under("src") || file.under("tools")) || !file.path.ends_with("/CMakeLists.txt")) continue;
    std::set<std::string> listed;
    for (std::sregex_iterator at(file.text.begin(), file.text.end(), list), end; at != end; ++at) {
      std::istringstream words((*at)[1]);
      std::vector<std::string> sources;
      for (std::string word; words >> word;)
        if (word.ends_with(".cpp") && word.find('$') == std::string::npos) sources.push_back(word);
      EXPECT_TRUE(std::is_sorted(sources.begin(), sources.end())) << file.path << ": " << (*at)[1];
      listed.insert(sources.begin(), sources.end());
    }
    const std::string folder = fs::path(file.path).parent_path().string();
    if (folder == "src") continue;  // the precompiled header has a source of its own
    for (const SourceFile& source : source_tree()) {
      if (!source.under(folder) || source.extension() != ".cpp") continue;
      // One of the two is chosen at configure time.
      if (source.path.ends_with("_present.cpp") || source.path.ends_with("_absent.cpp")) continue;
      EXPECT_TRUE(listed.contains(source.path.substr(folder.size() + 1)))
          << source.path << " is not listed in " << file.path;
    }
  }
}

// The macros can be compared by the preprocessor.
#if PENSTOCK_VERSION < 100 || PENSTOCK_VERSION_MAJOR < 0
#error "PENSTOCK_VERSION is not a number"
#endif
TEST(ProjectBuild, VersionMacrosMatchLibrary) {
  std::ostringstream parts;
  parts << PENSTOCK_VERSION_MAJOR << "." << PENSTOCK_VERSION_MINOR << "." << PENSTOCK_VERSION_PATCH;
  EXPECT_EQ(parts.str(), PENSTOCK_VERSION_STRING);
  EXPECT_EQ(version(), PENSTOCK_VERSION_STRING);
}

}  // namespace
}  // namespace penstock::test
