// Architectures of the Python package `transformers`, exported by the Python that PENSTOCK_PYTHON names:
// imported, compared with eager, and split at random. Skipped if that Python lacks transformers.
#include "support/program.h"
#include "support/python_reference.h"
#include "unsplit_model.h"

#include <penstock/graph/split.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <random>
#include <sstream>

namespace penstock::graph {
namespace {

TEST(GraphSweep, TransformersMatchPythonUnsplitAndSplit) {
  const char* python = std::getenv("PENSTOCK_PYTHON");
  const std::string program = python != nullptr ? python : "python3";
  if (test::run_program({program, "-c", "import transformers, torch; assert torch.__version__ >= '2.13'"})
          .code != 0)
    GTEST_SKIP() << "PENSTOCK_PYTHON names no Python with transformers";
  const char* kept =
      std::getenv("PENSTOCK_SWEEP_FOLDER");  // archives of an earlier run, or the folder to keep them in
  const test::TempDir temporary;
  const auto folder = std::filesystem::path(kept != nullptr ? kept : temporary.path());
  std::filesystem::create_directories(folder);
  std::vector<std::string> words{program, "-W", "ignore",
                                 PENSTOCK_SOURCE_DIR "/tests/graph/make_transformers.py", folder.string()};
  const char* some = std::getenv("PENSTOCK_SWEEP_MODELS");  // names of models, to run only these
  std::istringstream names(some != nullptr ? some : "");
  for (std::string name; names >> name;) words.push_back(name);
  if (kept == nullptr || std::filesystem::is_empty(folder)) {
    const auto made = test::run_program(words);
    ASSERT_EQ(made.code, 0) << made.err;
    std::printf("%s", made.out.c_str());
  }
  std::mt19937 random(3);
  int models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".pt2") continue;
    const std::string path = (folder / entry.path().stem()).string();
    SCOPED_TRACE(path);
    ++models;
    const int failed = ::testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
    test::expect_as_python(path, (folder / "expected").string(), false);
    const test::UnsplitModel unsplit(path);
    const SplitPositions legal = legal_split_positions(unsplit.file.graph());
    for (std::size_t count = 1; count <= std::min<std::size_t>(8, legal.size()); ++count) {
      SplitPositions positions;
      std::sample(legal.begin(), legal.end(), std::back_inserter(positions), count, random);
      SCOPED_TRACE("split before nodes " + testing::PrintToString(positions));
      test::expect_equal(unsplit, positions, false);
      test::expect_partition(unsplit.file.graph(), split_graph(unsplit.file.graph(), positions));
    }
    const bool well =
        ::testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count() == failed;
    std::printf("%s %s\n", well ? "equal" : "differs", entry.path().stem().c_str());
  }
  EXPECT_GE(models, some != nullptr ? 1 : 39);
}

}  // namespace
}  // namespace penstock::graph
