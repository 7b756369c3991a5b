// Replays the known inputs of every target, and random edits of them for a short time; `./dev fuzz` searches
// for more.
#include "fuzz/targets.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <sstream>

namespace penstock::fuzz {
namespace {

class FuzzParsers : public testing::TestWithParam<Target> {};

TEST_P(FuzzParsers, AcceptKnownInputs) {
  const std::vector<std::string> inputs = inputs_of(GetParam());
  ASSERT_FALSE(inputs.empty());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    EXPECT_EQ(problem_with(GetParam(), inputs[i]), nullptr) << "input " << i << "\n"
                                                            << inputs[i].substr(0, 2000);
}

//! A few random edits: bytes, words of the format, parts of other inputs.
class Editor {
 public:
  explicit Editor(const Target& target) : inputs_(inputs_of(target)) {
    std::istringstream words(target.words);
    for (std::string word; std::getline(words, word, ' ');) words_.push_back(word);
  }

  std::string next(std::mt19937& random) const {
    std::string input = any(inputs_, random);
    for (unsigned edits = 1 + random() % 4; edits > 0; --edits) {
      const std::size_t at = random() % (input.size() + 1);
      switch (random() % 6) {
        case 0:
          input.insert(at, any(words_, random));
          break;
        case 1:
          input.replace(at, random() % 4, any(words_, random));
          break;
        case 2:
          input.erase(at, random() % 8);
          break;
        case 3:
          if (at < input.size()) input[at] = static_cast<char>(random() % 256);
          break;
        case 4:
          if (at < input.size() && input[at] >= '0' && input[at] <= '9')
            input[at] = static_cast<char>('0' + random() % 10);
          break;
        default: {
          const std::string& donor = any(inputs_, random);
          if (!donor.empty()) input.insert(at, donor.substr(random() % donor.size(), random() % 40));
          break;
        }
      }
    }
    return input;
  }

 private:
  static const std::string& any(const std::vector<std::string>& list, std::mt19937& random) {
    return list[random() % list.size()];
  }

  std::vector<std::string> inputs_, words_;
};

TEST_P(FuzzParsers, SurviveRandomEdits) {
  const Editor editor(GetParam());
  const unsigned seed = 5;
  std::mt19937 random(seed);
  // As many edits as fit in one second, so that slow parsers and sanitizers do not delay the suite. Every
  // run starts with the same edits.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  int run = 0;
  for (; run < 20'000 && std::chrono::steady_clock::now() < end; ++run) {
    const std::string input = editor.next(random);
    ASSERT_EQ(problem_with(GetParam(), input), nullptr) << "seed " << seed << ", run " << run << "\n"
                                                        << input.substr(0, 2000);
  }
  std::printf("%s: %d edits\n", GetParam().name, run);
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzParsers, testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace penstock::fuzz
