// Replays the corpus that the coverage-guided fuzzer gathered (fuzz/run), and a short run of random edits of
// it.
#include "schedule/fuzz/target.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace penstock {
namespace {

std::vector<std::string> corpus() {
  std::vector<std::filesystem::path> paths;
  const std::string directory = std::string(PENSTOCK_SOURCE_DIR) + "/tests/schedule/fuzz/corpus";
  for (const auto& entry : std::filesystem::directory_iterator(directory)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> inputs;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return inputs;
}

TEST(Fuzz, TheCorpusHoldsItsPromises) {
  const std::vector<std::string> inputs = corpus();
  ASSERT_GE(inputs.size(), 27U);
  for (const std::string& input : inputs) EXPECT_EQ(fuzz::try_csv(input), nullptr) << input;
}

TEST(Fuzz, RandomEditsOfTheCorpusDoToo) {
  const std::vector<std::string> inputs = corpus();
  const std::string alphabet = "0123456789FBIW_SENDRCVUHAGOLP();<>,\n\r \xff";
  constexpr unsigned seed = 5;
  std::mt19937 random(seed);
  for (int run = 0; run < 20'000; ++run) {
    std::string input = inputs[random() % inputs.size()];
    const std::string& donor = inputs[random() % inputs.size()];
    for (unsigned edits = 1 + random() % 4; edits > 0; --edits) {
      const std::size_t at = random() % (input.size() + 1);
      switch (random() % 4) {
        case 0:
          input.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        case 1:
          if (at < input.size()) input[at] = alphabet[random() % alphabet.size()];
          break;
        case 2:
          input.erase(at, random() % 8);
          break;
        default:
          if (!donor.empty()) input.insert(at, donor.substr(random() % donor.size(), random() % 12));
          break;
      }
    }
    ASSERT_EQ(fuzz::try_csv(input), nullptr) << "seed " << seed << ", run " << run << "\n" << input;
  }
}

}  // namespace
}  // namespace penstock
