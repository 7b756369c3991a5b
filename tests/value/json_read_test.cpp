// The JSON reader: nesting is bounded, and what it refuses is told in few words.
#include "value/json_read.h"

#include <penstock/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string refusal(const std::string& text) {
  try {
    parse_json(std::string_view(text), "here");
  } catch (const ParseError& error) {
    return error.message();
  }
  return "accepted";
}

std::string nested(int depth, const std::string& open, const std::string& close) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  text += "0";
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

TEST(JsonRead, BoundsTheNestingOfListsAndObjects) {
  for (const auto& [open, close] :
       {std::pair<std::string, std::string>{"[", "]"}, {"{\"a\":", "}"}, {"[{\"a\":", "}]"}}) {
    EXPECT_THAT(refusal(nested(200'000, open, close)),
                HasSubstr("here: lists and objects are nested deeper than 500"));
    const int each = open.size() == 6 ? 2 : 1;
    EXPECT_EQ(refusal(nested(deepest_json / each, open, close)), "accepted") << open;
    EXPECT_NE(refusal(nested(deepest_json / each + 1, open, close)), "accepted") << open;
  }
  EXPECT_NE(refusal(std::string(200'000, '[')), "accepted");
}

TEST(JsonRead, BracketsInStringsAreNoNesting) {
  const std::string brackets(1000, '[');
  EXPECT_EQ(refusal("[\"" + brackets + "\"]"), "accepted");
  EXPECT_EQ(refusal("[\"\\\"" + brackets + "\"]"), "accepted");
  EXPECT_EQ(refusal("[\"\\\\\", \"" + brackets + "\"]"), "accepted");
  EXPECT_EQ(refusal(nested(100, "[\"]]]\", ", "]")), "accepted");
}

TEST(JsonRead, ErrorsDoNotRepeatALongText) {
  EXPECT_THAT(refusal("{\"" + std::string(1'000'000, 'x')), SizeIs(testing::Lt(400U)));
}

}  // namespace
}  // namespace penstock
