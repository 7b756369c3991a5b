// Rules that can be checked on the sources: allowed includes, contents of folders, and the start of each
// file.
#include "arrows.h"
#include "source_tree.h"
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>

namespace penstock::test {
namespace {

const std::set<std::string> kTorchFree = {"base", "schedule", "plan", "view"};

bool is_public(const SourceFile& file) {
  return file.under("include");
}
bool is_torch(const std::string& include) {
  const std::array folders = {"torch/", "ATen/", "c10/", "caffe2/", "fmt/", "gloo/"};
  return std::any_of(folders.begin(), folders.end(), [&](const char* f) { return include.starts_with(f); });
}

Reach reach() {
  return read_arrows(arrows_block(source_file("docs/architecture.md").text));
}

// The module of an include such as `penstock/comm/world.h` or `comm/wait.h`; empty if it has none.
std::string module_of_include(const std::string& include, const Reach& modules) {
  std::string rest = include;
  if (rest.starts_with("penstock/")) rest = rest.substr(9);
  const std::string first = rest.substr(0, rest.find('/'));
  return rest.find('/') != std::string::npos && modules.contains(first) ? first : "";
}

TEST(ProjectModuleGraph, FollowsArrowsAndDetectsCycles) {
  const Reach read = read_arrows("a <- b <- c\n{c, d} <- e\n");
  EXPECT_THAT(read.at("e"), testing::ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_THAT(read.at("b"), testing::ElementsAre("a", "b"));
  EXPECT_THROW(read_arrows("a <- b <- c\nc <- a\n"), std::runtime_error);
}

TEST(ProjectSources, ScanFindsFiles) {
  EXPECT_GT(std::count_if(source_tree().begin(), source_tree().end(), std::mem_fn(&SourceFile::is_code)), 20);
}

TEST(ProjectSources, EveryModuleIsInModuleGraph) {
  const Reach modules = reach();
  for (const SourceFile& file : source_tree()) {
    if (!file.is_library() || file.module().empty()) continue;
    EXPECT_TRUE(modules.contains(file.module())) << file.path;
  }
}

TEST(ProjectSources, ModulesIncludeOnlyAllowedModules) {
  const Reach modules = reach();
  for (const SourceFile& file : source_tree()) {
    if (!file.is_library() || !file.is_code() || file.module().empty()) continue;
    for (const std::string& include : file.includes()) {
      const std::string other = module_of_include(include, modules);
      if (!other.empty()) {
        EXPECT_TRUE(modules.at(file.module()).contains(other)) << file.path << " includes " << include;
      }
      EXPECT_NE(include, "penstock/penstock.h") << file.path << ": the header of everything is for users";
    }
  }
}

TEST(ProjectSources, TorchFreeModulesDoNotIncludeTorch) {
  for (const SourceFile& file : source_tree()) {
    if (!file.is_code() || !file.is_library() || !kTorchFree.contains(file.module())) continue;
    for (const std::string& include : file.includes())
      EXPECT_FALSE(is_torch(include)) << file.path << ": " << include;
  }
}

// Headers that define torch::nn modules.
bool defines_nn_module(const SourceFile& file) {
  return file.module() == "models" || file.path == "include/penstock/graph/exported_module.h";
}

TEST(ProjectSources, PublicHeadersIncludeOnlyLightTorchHeaders) {
  for (const SourceFile& file : source_tree()) {
    if (!is_public(file) || defines_nn_module(file)) continue;
    for (const std::string& include : file.includes()) {
      const bool light = include.starts_with("ATen/core/") || include.starts_with("c10/");
      EXPECT_TRUE(!is_torch(include) || light) << file.path << ": " << include;
    }
  }
}

// torch::nn costs seconds per file, so programs that do not need these headers must not include them.
TEST(ProjectSources, UmbrellaHeaderDefinesNoNnModule) {
  std::vector<std::string> open{"penstock/penstock.h"};
  std::set<std::string> seen;
  while (!open.empty()) {
    const std::string header = open.back();
    open.pop_back();
    if (!header.starts_with("penstock/") || header.ends_with("/version.h") || !seen.insert(header).second)
      continue;
    const SourceFile& file = source_file("include/" + header);
    EXPECT_FALSE(defines_nn_module(file)) << file.path;
    for (const std::string& include : file.includes()) open.push_back(include);
  }
  EXPECT_GT(seen.size(), 50U);
}

// Private headers are included in quotes.
TEST(ProjectSources, PublicHeadersAndExamplesIncludeOnlyPublicHeaders) {
  for (const SourceFile& file : source_tree()) {
    if (!file.is_code() || !(is_public(file) || file.under("examples"))) continue;
    EXPECT_EQ(file.text.find("#include \""), std::string::npos) << file.path;
  }
}

// Headers in a `detail` folder are installed because public headers include them; users do not.
TEST(ProjectSources, DetailHeadersAreOnlyForTheirModule) {
  for (const SourceFile& file : source_tree()) {
    if (!file.is_code()) continue;
    if (is_public(file) && file.path.find("/detail/") != std::string::npos) {
      EXPECT_NE(file.text.find("\nnamespace penstock::" + file.module() + "::detail {"), std::string::npos)
          << file.path;
    }
    for (const std::string& include : file.includes()) {
      if (!include.starts_with("penstock/") || include.find("/detail/") == std::string::npos) continue;
      EXPECT_TRUE(file.is_library() && include.starts_with("penstock/" + file.module() + "/"))
          << file.path << " includes " << include;
    }
  }
}

// The Python extension gets stores of c10d from Python.
TEST(ProjectSources, OnlyCommIncludesC10dAndGloo) {
  std::vector<std::string> gloo_users;
  for (const SourceFile& file : source_tree()) {
    if (!file.is_code()) continue;
    for (const std::string& include : file.includes()) {
      if (include.find("ProcessGroupGloo") != std::string::npos) gloo_users.push_back(file.path);
      if (include.find("c10d/") == std::string::npos && !include.starts_with("gloo/")) continue;
      EXPECT_TRUE(file.under("src/comm") || file.under("tests/comm") || file.under("python/ext/torch"))
          << file.path << ": " << include;
    }
  }
  EXPECT_LE(gloo_users.size(), 1U) << testing::PrintToString(gloo_users);
}

TEST(ProjectSources, OnlyToolIncludesCliAndTomlParsers) {
  for (const SourceFile& file : source_tree()) {
    if (!file.is_code() || file.under("tools")) continue;
    for (const std::string& include : file.includes()) {
      EXPECT_FALSE(include.starts_with("CLI/") || include.starts_with("toml++/"))
          << file.path << ": " << include;
    }
  }
}

// Values of nlohmann::json allocate when they are destroyed, and terminate the process if memory runs out.
TEST(ProjectSources, OnlyJsonReaderIncludesJsonLibrary) {
  for (const SourceFile& file : source_tree()) {
    if (!file.is_code() || !(file.is_library() || file.under("tools"))) continue;
    for (const std::string& include : file.includes())
      EXPECT_TRUE(!include.starts_with("nlohmann/") || file.under("src/base/io"))
          << file.path << ": " << include;
  }
}

TEST(ProjectSources, EveryFileStartsWithComment) {
  for (const SourceFile& file : source_tree()) {
    const std::string kind = file.extension();
    if (file.is_code()) {
      EXPECT_TRUE(file.text.starts_with("// ")) << file.path;
    }
    if (kind == ".py" || kind == ".cmake" || kind == ".sh") {
      EXPECT_TRUE(file.text.starts_with("#") || file.text.starts_with("\"\"\"")) << file.path;
    }
  }
}

TEST(ProjectSources, FilesAreSmall) {
  for (const SourceFile& file : source_tree()) {
    const std::string kind = file.extension();
    if (!file.is_code() && kind != ".py" && kind != ".cmake" && file.path != "dev") continue;
    EXPECT_LE(std::count(file.text.begin(), file.text.end(), '\n'), 500) << file.path;
  }
}

// A test that sleeps is slow on an idle machine and wrong on a busy one. (Processes that a test starts may
// sleep: they only have to exist.)
TEST(ProjectSources, TestsDoNotSleep) {
  const std::vector<std::string> forbidden = {std::string("sleep") + "_for", std::string("sleep") + "_until",
                                              std::string("u") + "sleep(",   std::string("nano") + "sleep(",
                                              std::string("::sl") + "eep(",  std::string("time.sl") + "eep"};
  for (const SourceFile& file : source_tree()) {
    if (!file.under("tests")) continue;
    for (const std::string& text : forbidden)
      EXPECT_EQ(file.text.find(text), std::string::npos) << file.path << " calls " << text;
  }
}

TEST(ProjectSources, ContainNoMachineSpecificPathOrHost) {
  // Split in two so that this file does not match itself.
  const std::vector<std::string> forbidden = {
      std::string("/wo") + "rk/",   std::string("/ro") + "ot/",   std::string("/ho") + "me/",
      std::string(".py") + "env",   std::string("pypi") + ".org", std::string("download.") + "pytorch",
      std::string("../sha") + "red"};
  for (const SourceFile& file : source_tree()) {
    for (const std::string& text : forbidden) {
      EXPECT_EQ(file.text.find(text), std::string::npos) << file.path << " holds " << text;
    }
  }
}

#ifdef PENSTOCK_OBJECTS
// Debian's Gloo headers are older than the Gloo inside libtorch. This is harmless if our objects do not
// define its classes: a vtable or type information of gloo:: in our objects could replace libtorch's.
TEST(ProjectObjects, DefineNoGlooVtable) {
  std::string user;
  for (const SourceFile& file : source_tree()) {
    if (!file.under("src")) continue;
    for (const std::string& include : file.includes()) {
      if (include.find("ProcessGroupGloo") != std::string::npos) user = file.path.substr(4);
    }
  }
  ASSERT_FALSE(user.empty()) << "nothing includes ProcessGroupGloo.hpp";
  const Outcome symbols = run_program({"nm", "-C", "--defined-only", PENSTOCK_OBJECTS "/" + user + ".o"});
  ASSERT_EQ(symbols.code, 0) << symbols.err;
  ASSERT_THAT(symbols.out, testing::HasSubstr("penstock::"));
  EXPECT_THAT(symbols.out, testing::Not(testing::HasSubstr("vtable for gloo::")));
  EXPECT_THAT(symbols.out, testing::Not(testing::HasSubstr("typeinfo for gloo::")));
}
#endif

}  // namespace
}  // namespace penstock::test
