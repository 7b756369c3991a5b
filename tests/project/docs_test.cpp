// Checks the documents: links resolve, and the reference map names only files, symbols and tests that exist.
#include "reference_map.h"
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

const std::vector<ReferenceRow>& reference_map() {
  static const std::vector<ReferenceRow> rows = read_reference_map(source_file("docs/reference-map.md").text);
  return rows;
}

bool has_word(const std::string& text, const std::string& word) {
  return std::regex_search(text, std::regex("\\b" + word + "\\b"));
}

// `Suite.Case` of every test in the tree. Parameterized suites appear without their instantiation.
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

TEST(ProjectReferenceMap, ContainsEveryReferenceNameExactlyOnce) {
  std::map<std::string, int> count;
  for (const ReferenceRow& row : reference_map()) ++count[row.file + " " + row.name];
  std::istringstream lines(source_file("tests/project/reference_names.txt").text);
  std::size_t names = 0;
  for (std::string line; std::getline(lines, line); ++names) EXPECT_EQ(count[line], 1) << line;
  EXPECT_EQ(reference_map().size(), names) << "a row names something that is not in the reference";
  EXPECT_GT(names, 150U);
}

TEST(ProjectReferenceMap, EveryRowIsComplete) {
  for (const ReferenceRow& row : reference_map()) {
    const std::string where = "docs/reference-map.md:" + std::to_string(row.line) + " " + row.name;
    if (row.status == "done") {
      EXPECT_FALSE(row.entities.empty()) << where << " names no Penstock symbol";
      EXPECT_FALSE(row.tests.empty()) << where << " names no test";
    } else if (row.status == "not needed") {
      EXPECT_GT(row.last.size(), 20U) << where << " gives no reason";
    } else {
      ADD_FAILURE() << where << ": unknown status '" << row.status << "'";
    }
  }
}

TEST(ProjectReferenceMap, NamesOnlyExistingEntities) {
  for (const ReferenceRow& row : reference_map()) {
    if (row.status != "done") continue;
    const std::string where = "docs/reference-map.md:" + std::to_string(row.line) + " " + row.name;
    for (const PenstockName& entity : row.entities) {
      const std::string path = (entity.file.starts_with("penstock/") ? "include/" : "") + entity.file;
      ASSERT_TRUE(fs::exists(fs::path(PENSTOCK_SOURCE_DIR) / path)) << where << ": " << path;
      const std::string last = entity.name.substr(entity.name.rfind(':') + 1);
      EXPECT_TRUE(has_word(source_file(path).text, last)) << where << ": no " << last << " in " << path;
    }
    for (const std::string& test : row.tests)
      EXPECT_TRUE(test_names().contains(test)) << where << ": no test " << test;
  }
}

TEST(ProjectLinks, PointToExistingFiles) {
  const std::regex link("\\]\\(([^)#\\s]+)(#[^)]*)?\\)");  // not a lambda, which has spaces
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

// docs/documents.md is the only way from the README to most documents.
TEST(ProjectLinks, IndexListsEveryDocument) {
  const std::string index = source_file("docs/documents.md").text;
  for (const SourceFile& file : source_tree()) {
    if (!file.path.starts_with("docs/") || file.extension() != ".md" || file.path.starts_with("docs/adr/"))
      continue;
    const std::string name = file.path.substr(5);
    if (name != "documents.md") EXPECT_THAT(index, testing::HasSubstr("- [" + name + "](" + name + "): "));
  }
}

// The recipes of CONTRIBUTING.md name files. `include/` may be left out; `<name>` stands for a new file.
TEST(ProjectContributing, NamesOnlyFilesThatExist) {
  const std::regex path("`((?:include|src|tools|tests|docs|examples|bench|cmake|penstock)/[^`<…* ]+)`");
  const std::string text = source_file("CONTRIBUTING.md").text;
  int paths = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), path), end; it != end; ++it) {
    const std::string name = (*it)[1];
    const std::string from_root = (name.starts_with("penstock/") ? "include/" : "") + name;
    EXPECT_TRUE(fs::exists(fs::path(PENSTOCK_SOURCE_DIR) / from_root)) << name;
    ++paths;
  }
  EXPECT_GT(paths, 30);
}

// The code of a line, without comment and indentation.
std::string code_of(const std::string& line) {
  const std::string code = line.substr(0, line.find("//"));
  const auto begin = code.find_first_not_of(' '), end = code.find_last_not_of(' ');
  return begin == std::string::npos ? std::string() : code.substr(begin, end - begin + 1);
}

// The C++ blocks of README.md between `heading` and the next heading, each as its lines of code.
std::vector<std::vector<std::string>> readme_programs(const std::string& heading) {
  std::vector<std::vector<std::string>> programs;
  std::istringstream readme(source_file("README.md").text);
  std::string line;
  while (std::getline(readme, line) && line != heading) {
  }
  while (std::getline(readme, line) && !line.starts_with("## ")) {
    if (line != "```cpp") continue;
    programs.emplace_back();
    while (std::getline(readme, line) && line != "```")
      if (const std::string code = code_of(line); !code.empty()) programs.back().push_back(code);
  }
  return programs;
}

TEST(ProjectReadme, ShowsEssentialsOnFirstScreen) {
  std::istringstream lines(source_file("README.md").text);
  std::string screen, line;
  for (int count = 0; count < 60 && std::getline(lines, line); ++count) screen += line + "\n";
  EXPECT_THAT(screen, testing::HasSubstr("\n./dev train"));
  EXPECT_THAT(screen, testing::HasSubstr("\n./dev test"));
  EXPECT_THAT(screen, testing::HasSubstr("](docs/images/zb1p.svg)\n"));
  EXPECT_THAT(screen, testing::HasSubstr("`./dev bench runtime` |\n"));
  EXPECT_THAT(screen, testing::HasSubstr("**Status.**"));
  const std::size_t program = screen.find("\n```cpp\n");
  ASSERT_NE(program, std::string::npos);
  EXPECT_NE(screen.find("\n```\n", program), std::string::npos) << "the program ends below the screen";
  const auto programs = readme_programs("# Penstock");
  ASSERT_EQ(programs.size(), 1U);
  EXPECT_LE(programs[0].size(), 12U);
}

// Expects each line of the programs after `heading` to be a line of one of the examples.
void expect_examples(const std::string& heading, const std::vector<std::string>& examples) {
  std::set<std::string> known;
  for (const std::string& example : examples) {
    std::istringstream program(source_file("examples/" + example).text);
    for (std::string line; std::getline(program, line);) known.insert(code_of(line));
  }
  const auto programs = readme_programs(heading);
  ASSERT_FALSE(programs.empty()) << heading;
  for (const auto& program : programs)
    for (const std::string& line : program) EXPECT_TRUE(known.contains(line)) << line;
  EXPECT_GT(programs[0].size(), 8U);
  for (const char* include : {"#include <penstock/penstock.h>", "#include <torch/torch.h>"})
    EXPECT_THAT(programs[0], testing::Contains(include)) << heading;
}

TEST(ProjectReadme, ShowsLinesOfExamples) {
  expect_examples("# Penstock", {"mlp_pipeline.cpp"});
  expect_examples("## I have a libtorch training loop", {"ddp.cpp", "sharded.cpp"});
}

}  // namespace
}  // namespace penstock::test
