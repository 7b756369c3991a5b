// Slurm's node lists, compared with lists that a random generator writes together with their expansion.
#include "comm/rendezvous/node_list.h"

#include "support/error_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace penstock::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Names = std::vector<std::string>;

TEST(CommNodeList, ExpandsEverySyntax) {
  EXPECT_THAT(expand_node_list("node[01-03,7],gpu1"),
              ElementsAre("node01", "node02", "node03", "node7", "gpu1"));
  EXPECT_THAT(expand_node_list("head"), ElementsAre("head"));
  EXPECT_THAT(expand_node_list("n[9-11]"), ElementsAre("n9", "n10", "n11"));
  EXPECT_THAT(expand_node_list("n[098-101]"), ElementsAre("n098", "n099", "n100", "n101"));
  EXPECT_THAT(expand_node_list("r[1-2]n[3,5]"), ElementsAre("r1n3", "r1n5", "r2n3", "r2n5"));
  EXPECT_THAT(expand_node_list("n[1-2].cluster"), ElementsAre("n1.cluster", "n2.cluster"));
  EXPECT_THAT(expand_node_list("a-1,[4-5]"), ElementsAre("a-1", "4", "5"));
}

TEST(CommNodeList, RejectsInvalidLists) {
  for (const char* const text : {"",
                                 ",",
                                 "a,",
                                 ",a",
                                 "a,,b",
                                 "n[",
                                 "n]",
                                 "n[1",
                                 "n[]",
                                 "n[1-]",
                                 "n[-1]",
                                 "n[2-1]",
                                 "n[a]",
                                 "n[1,]",
                                 "n[1-2-3]",
                                 "n[[1]]",
                                 "n[1]]",
                                 "n[1-010]",
                                 "n[1234567890]",
                                 "n[0-99999999]",
                                 "n[0-999]m[0-999]",
                                 "n[+1]",
                                 "n[ 1]"})
    EXPECT_THAT(test::error_message<UsageError>([&] { expand_node_list(text); }),
                HasSubstr("is not a list of nodes"))
        << text;
  std::string brackets = "n[0-65535]";
  for (int i = 0; i < 100; ++i) brackets += "[000000001]";
  for (const std::string& text : {std::string(300, 'n') + "[0-65535]", brackets})
    EXPECT_THAT(test::error_message<UsageError>([&] { expand_node_list(text); }),
                HasSubstr("a name is too long"));
}

// Writes a list and, independently of the parser, the names that it stands for.
class ListWriter {
 public:
  explicit ListWriter(unsigned seed) : random_(seed) {}

  std::pair<std::string, Names> list() {
    std::string text;
    Names names;
    for (int items = pick(1, 4); items > 0; --items) {
      const auto [item, expanded] = this->item();
      text += (text.empty() ? "" : ",") + item;
      names.insert(names.end(), expanded.begin(), expanded.end());
    }
    return {text, names};
  }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  std::string word() {
    return std::string(static_cast<std::size_t>(pick(1, 3)), static_cast<char>(pick('a', 'z')));
  }

  std::pair<std::string, Names> item() {
    std::string text = word();
    Names names{text};
    for (int brackets = pick(0, 2); brackets > 0; --brackets) {
      const auto [inside, numbers] = ranges();
      const std::string after = pick(0, 1) == 0 ? "" : word();
      text += "[" + inside + "]" + after;
      Names longer;
      for (const std::string& name : names)
        for (const std::string& number : numbers) longer.push_back(name + number + after);
      names = longer;
    }
    return {text, names};
  }

  std::pair<std::string, Names> ranges() {
    std::string text;
    Names numbers;
    for (int count = pick(1, 3); count > 0; --count) {
      const int width = pick(1, 4), first = pick(0, 120), last = first + pick(0, 15);
      const auto padded = [width](int number) {
        char digits[16];
        std::snprintf(digits, sizeof digits, "%0*d", width, number);
        return std::string(digits);
      };
      text += (text.empty() ? "" : ",") + padded(first);
      if (last != first || pick(0, 1) == 0) text += "-" + padded(last);
      for (int number = first; number <= last; ++number) numbers.push_back(padded(number));
    }
    return {text, numbers};
  }

  std::mt19937 random_;
};

TEST(CommNodeList, MatchesRandomLists) {
  for (unsigned seed = 1; seed <= 2000; ++seed) {
    const auto [text, names] = ListWriter(seed).list();
    ASSERT_EQ(expand_node_list(text), names) << "seed " << seed << ": " << text;
  }
}

// Any text gives names or a UsageError.
TEST(CommNodeList, AcceptsOrRejectsRandomEdits) {
  int accepted = 0;
  for (unsigned seed = 1; seed <= 5000; ++seed) {
    std::mt19937 random(seed);
    std::string text = ListWriter(seed).list().first;
    for (int edits = 0; edits < 3; ++edits) {
      const std::size_t at = random() % text.size();
      text[at] = "[]-,019a"[random() % 8];
    }
    try {
      for (const std::string& name : expand_node_list(text)) {
        ASSERT_FALSE(name.empty()) << "seed " << seed << ": " << text;
        ASSERT_EQ(name.find_first_of("[],"), std::string::npos) << "seed " << seed << ": " << text;
      }
      ++accepted;
    } catch (const UsageError&) {  // refused
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 4900);
}

}  // namespace
}  // namespace penstock::comm
