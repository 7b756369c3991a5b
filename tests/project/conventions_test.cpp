// Conventions of the sources: namespaces, test names, messages, folder sizes, line widths of documents.
#include "source_tree.h"
#include "support/lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

bool is_module_code(const SourceFile& file) {
  return file.is_library() && !file.module().empty() && file.is_code();
}

// Counts characters: continuation bytes of UTF-8 do not count.
std::size_t width_of(const std::string& line) {
  std::size_t width = 0;
  for (const char c : line) width += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  return width;
}

TEST(ProjectConventions, NamespaceMatchesModule) {
  const std::regex opened("\nnamespace penstock(::[a-z_0-9]+)*");
  int files = 0;
  for (const SourceFile& file : source_tree()) {
    if (!is_module_code(file)) continue;
    const std::string own = file.module() == "base" ? "" : "::" + file.module();
    bool found = false;
    for (std::sregex_iterator at(file.text.begin(), file.text.end(), opened), end; at != end; ++at) {
      const std::string name = at->str().substr(std::string("\nnamespace penstock").size());
      found = found || name == own || name.starts_with(own + "::");
    }
    if (file.text.find("namespace penstock") != std::string::npos) {
      EXPECT_TRUE(found) << file.path << ": expected namespace penstock" << own;
      ++files;
    }
  }
  EXPECT_GT(files, 300);
}

TEST(ProjectConventions, LibraryMessagesDoNotNameFlags) {
  const std::regex flag("\"[^\"\n]*(^|[^-\\w])--[a-z][^\"\n]*\"");
  for (const SourceFile& file : source_tree()) {
    if (!is_module_code(file)) continue;
    for (const std::string& line : lines_of(file.text)) {
      // Exception: the command line of the launcher itself.
      if (line.find("penstock run ") != std::string::npos) continue;
      EXPECT_FALSE(std::regex_search(line, flag)) << file.path << ": " << line;
    }
  }
}

// A program decides what its users see, so the library reports through return values, exceptions, callbacks
// and the logger.
TEST(ProjectConventions, LibraryWritesToTerminalOnlyThroughLogger) {
  const std::regex output(
      "\\b(stderr|stdout|STDERR_FILENO|STDOUT_FILENO|std::(cerr|cout|clog)|perror|puts)\\b");
  const std::map<std::string, std::string> exceptions = {
      {"src/base/log.cpp", "the logger"},
      {"src/comm/launch/child_process.cpp", "redirects the streams of a rank"},
      {"src/comm/launch/launcher.cpp", "forwards the output of the ranks"},
  };
  for (const SourceFile& file : source_tree()) {
    if (!is_module_code(file) || exceptions.contains(file.path)) continue;
    for (const std::string& line : lines_of(file.text))
      EXPECT_FALSE(std::regex_search(line.substr(0, line.find("//")), output)) << file.path << ": " << line;
  }
}

TEST(ProjectConventions, SuitesStartWithModuleAndCasesAreUnique) {
  const std::regex test("\n(?:TYPED_)?TEST(?:_F|_P)?\\((\\w+),\\s*(\\w+)\\)");
  std::map<std::string, std::string> seen;
  for (const SourceFile& file : source_tree()) {
    if (!file.under("tests") || !file.is_code()) continue;
    std::string prefix = file.module();
    if (prefix.empty()) continue;
    if (prefix == "tools") prefix = "tool";
    prefix[0] = static_cast<char>(prefix[0] - 'a' + 'A');
    for (std::sregex_iterator at(file.text.begin(), file.text.end(), test), end; at != end; ++at) {
      const std::string suite = (*at)[1], name = suite + "." + (*at)[2].str();
      EXPECT_TRUE(suite.starts_with(prefix)) << file.path << ": " << name;
      EXPECT_THAT((*at)[2].str(), testing::MatchesRegex("[A-Z][A-Za-z0-9]*")) << file.path;
      EXPECT_TRUE(seen.emplace(name, file.path).second)
          << name << " in " << file.path << " and " << seen[name];
    }
  }
  EXPECT_GT(seen.size(), 900U);
}

// Many errors have the same type, so a test that checks only the type passes with the wrong error.
TEST(ProjectConventions, TestsCheckMessagesOfExpectedErrors) {
  const std::regex own("[,\\s](?!std::|c10::)(\\w+::)*\\w*(Error|PeerFailed)\\)");
  const std::string macro = std::string("_THROW") + "(";
  for (const SourceFile& file : source_tree()) {
    if (!file.under("tests") || !file.is_code()) continue;
    for (std::size_t at = file.text.find(macro); at != std::string::npos;
         at = file.text.find(macro, at + 1)) {
      const std::string call = file.text.substr(at, file.text.find(';', at) - at);
      EXPECT_FALSE(std::regex_search(call, own)) << file.path << ": use EXPECT_ERROR for " << call;
    }
  }
}

// The API reference is generated from these comments.
TEST(ProjectConventions, PublicTypesHaveComments) {
  const std::regex type(
      "\n((?:template [^\n]*\n|requires[^\n]*\n)*)(?:class|struct) (?!std::)(\\w+)[^;\n]*\\{");
  int types = 0;
  for (const SourceFile& file : source_tree()) {
    if (!file.under("include") || !file.is_code()) continue;
    std::string text = file.text;
    const std::size_t detail = text.find("\nnamespace detail {");
    if (detail != std::string::npos) text.erase(detail, text.find("\n}  // namespace detail") - detail);
    for (std::sregex_iterator at(text.begin(), text.end(), type), end; at != end; ++at) {
      const std::string before = text.substr(0, static_cast<std::size_t>(at->position()));
      EXPECT_TRUE(before.substr(before.rfind('\n') + 1).starts_with("//!"))
          << file.path << ": " << (*at)[2] << " has no comment";
      ++types;
    }
  }
  EXPECT_GT(types, 150);
}

TEST(ProjectConventions, FoldersAreSmall) {
  // Folders with one file per schedule, or per command.
  const std::set<std::string> lists{"src/schedule/generators", "tools/penstock/commands"};
  std::map<std::string, int> sources;
  for (const SourceFile& file : source_tree())
    if (file.extension() == ".cpp" && !file.under("tests"))
      ++sources[file.path.substr(0, file.path.rfind('/'))];
  for (const auto& [folder, count] : sources) {
    if (lists.contains(folder)) continue;
    EXPECT_LE(count, 14) << folder << " needs sub-folders by topic";
  }
}

TEST(ProjectConventions, DocumentsAreWrapped) {
  for (const SourceFile& file : source_tree()) {
    if (file.extension() != ".md") continue;
    bool code = false;
    for (const std::string& line : lines_of(file.text)) {
      if (line.starts_with("```")) code = !code;
      // Tables and lines with one long link cannot be wrapped.
      if (code || line.starts_with("|") || line.find(' ') == std::string::npos) continue;
      EXPECT_LE(width_of(line), 100U) << file.path << ": " << line;
    }
  }
}

}  // namespace
}  // namespace penstock::test
