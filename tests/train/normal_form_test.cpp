// Unicode's normalization form C, compared with Python's unicodedata.
#include "train/text/normal_form.h"

#include "support/error_message.h"
#include "support/program.h"
#include "support/temp_dir.h"

#include <penstock/base/error.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <sstream>
#include <string>

namespace penstock::train {
namespace {

TEST(TrainNormalForm, MatchesPython) {
  const char* const python = std::getenv("PENSTOCK_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "PENSTOCK_PYTHON is not set";
  const test::TempDir dir;
  const auto seed = std::to_string(std::random_device()());
  SCOPED_TRACE("seed " + seed);
  const test::Outcome made = test::run_program(
      {python, "-B", PENSTOCK_SOURCE_DIR "/tests/train/normal_form_oracle.py", dir.path(), seed});
  ASSERT_EQ(made.code, 0) << made.err;
  const std::string all = test::slurp(dir / "texts.txt"), all_composed = test::slurp(dir / "composed.txt");
  EXPECT_EQ(composed_form(all), all_composed);
  std::istringstream texts(all), composed(all_composed);
  std::size_t lines = 0, different = 0;
  for (std::string text, expected; std::getline(texts, text) && std::getline(composed, expected); ++lines) {
    if (composed_form(text) != expected && ++different < 10) ADD_FAILURE() << text << " " << expected;
    if (precedes_marks(text)) EXPECT_EQ(text, expected);
  }
  EXPECT_EQ(different, 0U);
  EXPECT_GT(lines, 3U * 100'000);
}

TEST(TrainNormalForm, RefusesInvalidUtf8AtItsOffset) {
  EXPECT_ERROR(composed_form("e\u0301\xff"), UsageError, "not valid UTF-8 at byte 3");
}

}  // namespace
}  // namespace penstock::train
