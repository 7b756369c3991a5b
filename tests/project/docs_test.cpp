// The documents are true: links lead somewhere, and the map of the reference's names names what exists.
#include "seed_map.h"
#include "source_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

namespace penstock::test {
namespace {

namespace fs = std::filesystem;

const std::vector<SeedRow>& seed_map() {
  static const std::vector<SeedRow> rows = read_seed_map(source_file("docs/seed-map.md").text);
  return rows;
}

bool has_word(const std::string& text, const std::string& word) {
  return std::regex_search(text, std::regex("\\b" + word + "\\b"));
}

// `Suite.Case` of every test in the tree; a parameterised suite under its plain name.
const std::set<std::string>& test_names() {
  static const std::set<std::string> names = [] {
    std::set<std::string> found;
    const std::regex declared("TEST(_F|_P)?\\(\\s*([A-Za-z0-9_]+),\\s*([A-Za-z0-9_]+)\\)");
    for (const SourceFile& file : source_tree()) {
      if (!file.under("tests")) continue;
      for (std::sregex_iterator it(file.text.begin(), file.text.end(), declared), end; it != end; ++it) {
        found.insert((*it)[2].str() + "." + (*it)[3].str());
      }
    }
    return found;
  }();
  return names;
}

TEST(SeedMap, HoldsEveryNameOfTheReferenceExactlyOnce) {
  std::map<std::string, int> count;
  for (const SeedRow& row : seed_map()) ++count[row.file + " " + row.name];
  std::istringstream lines(source_file("tests/project/seed_names.txt").text);
  std::size_t names = 0;
  for (std::string line; std::getline(lines, line); ++names) EXPECT_EQ(count[line], 1) << line;
  EXPECT_EQ(seed_map().size(), names) << "a row is of no name of the reference";
  EXPECT_GT(names, 150U);
}

TEST(SeedMap, HasAKnownStatusAndWhatItAsksFor) {
  const std::regex issue("issue [4-8]");
  for (const SeedRow& row : seed_map()) {
    const std::string where = "docs/seed-map.md:" + std::to_string(row.line) + " " + row.name;
    if (row.status == "done") {
      EXPECT_FALSE(row.ours.empty()) << where << " names nothing of ours";
      EXPECT_FALSE(row.tests.empty()) << where << " names no test";
    } else if (row.status == "not needed") {
      EXPECT_GT(row.last.size(), 20U) << where << " gives no reason";
    } else {
      EXPECT_TRUE(std::regex_match(row.status, issue)) << where << ": status " << row.status;
    }
  }
}

TEST(SeedMap, NamesOnlyWhatExists) {
  for (const SeedRow& row : seed_map()) {
    if (row.status != "done") continue;
    const std::string where = "docs/seed-map.md:" + std::to_string(row.line) + " " + row.name;
    for (const OurName& our : row.ours) {
      const std::string path = (our.header.starts_with("penstock/") ? "include/" : "") + our.header;
      ASSERT_TRUE(fs::exists(fs::path(PENSTOCK_SOURCE_DIR) / path)) << where << ": " << path;
      const std::string last = our.name.substr(our.name.rfind(':') + 1);
      EXPECT_TRUE(has_word(source_file(path).text, last)) << where << ": no " << last << " in " << path;
    }
    for (const std::string& test : row.tests)
      EXPECT_TRUE(test_names().contains(test)) << where << ": no test " << test;
  }
}

TEST(Links, LeadToFilesOfTheTree) {
  const std::regex link("\\]\\(([^)#]+)(#[^)]*)?\\)");
  int links = 0;
  for (const SourceFile& file : source_tree()) {
    if (file.extension() != ".md") continue;
    for (std::sregex_iterator it(file.text.begin(), file.text.end(), link), end; it != end; ++it) {
      const std::string target = (*it)[1];
      if (target.starts_with("http")) continue;
      const fs::path path = fs::path(PENSTOCK_SOURCE_DIR) / fs::path(file.path).parent_path() / target;
      EXPECT_TRUE(fs::exists(path)) << file.path << " links to " << target;
      ++links;
    }
  }
  EXPECT_GT(links, 5);
}

TEST(Readme, ShowsTheTwoCommandsOnTheFirstScreen) {
  std::istringstream lines(source_file("README.md").text);
  std::string screen;
  int count = 0;
  for (std::string line; std::getline(lines, line) && count < 40; ++count) screen += line + "\n";
  EXPECT_THAT(screen, testing::HasSubstr("\n./dev train"));
  EXPECT_THAT(screen, testing::HasSubstr("\n./dev test"));
}

// Each line of the README's program is one of the example's, but for comments.
TEST(Readme, ShowsTheDataParallelExample) {
  const auto plain = [](const std::string& line) {
    const std::string code = line.substr(0, line.find("//"));
    const auto begin = code.find_first_not_of(' '), end = code.find_last_not_of(' ');
    return begin == std::string::npos ? std::string() : code.substr(begin, end - begin + 1);
  };
  std::set<std::string> example;
  std::istringstream program(source_file("examples/ddp.cpp").text);
  for (std::string line; std::getline(program, line);) example.insert(plain(line));
  std::istringstream readme(source_file("README.md").text);
  std::string line;
  while (std::getline(readme, line) && line != "### Data parallelism for plain libtorch") {
  }
  while (std::getline(readme, line) && line != "```cpp") {
  }
  int shown = 0;
  for (; std::getline(readme, line) && line != "```"; ++shown)
    EXPECT_TRUE(example.contains(plain(line))) << line;
  EXPECT_GT(shown, 8);
}

}  // namespace
}  // namespace penstock::test
