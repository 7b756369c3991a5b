// Numbers as text: both implementations read back as the same number and agree with each other.
#include "base/number_text.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>

namespace penstock {
namespace {

std::string shortest(double number) {
  std::string text;
  append_shortest(text, number);
  return text;
}
std::string shortest_printf(double number) {
  std::string text;
  append_shortest_printf(text, number);
  return text;
}

TEST(BaseNumberText, WritesShortTexts) {
  for (const auto& [number, text] : {std::pair{0.1, "0.1"}, {-2.5, "-2.5"}, {0.0, "0"}, {3.0, "3"}}) {
    EXPECT_EQ(shortest(number), text);
    EXPECT_EQ(shortest_printf(number), text);
  }
  EXPECT_EQ(shortest_printf(0.1 + 0.2), "0.30000000000000004");
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(shortest_printf(i / 100.0), shortest(i / 100.0));
}

TEST(BaseNumberText, DecimalTextHasNotationForPeople) {
  for (const auto& [number, text] : {std::pair{0.0003, "0.0003"},
                                     {0.1, "0.1"},
                                     {3e-5, "3e-05"},
                                     {300.0, "300"},
                                     {100'000'000.0, "100000000"},
                                     {1e15, "1e+15"},
                                     {-2.0, "-2"}})
    EXPECT_EQ(decimal_text(number), text);
  EXPECT_EQ(decimal_text(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(decimal_text(-std::numeric_limits<double>::infinity()), "-inf");
}

TEST(BaseNumberText, RandomNumbersReadBackUnchanged) {
  constexpr std::uint64_t seed = 20'611;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 100'000; ++i) {
    const auto number = std::bit_cast<double>(random());
    if (!std::isfinite(number)) continue;
    ASSERT_EQ(std::strtod(shortest(number).c_str(), nullptr), number);
    if (i % 100 == 0) {
      ASSERT_EQ(std::strtod(decimal_text(number).c_str(), nullptr), number);
    }
    ASSERT_EQ(std::strtod(shortest_printf(number).c_str(), nullptr), number);
  }
  for (const double number : {std::numeric_limits<double>::max(), std::numeric_limits<double>::denorm_min()})
    EXPECT_EQ(std::strtod(shortest_printf(number).c_str(), nullptr), number);
}

TEST(BaseNumberText, RoundedTextsAgree) {
  constexpr std::uint64_t seed = 7;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(-12, 12);
  for (int i = 0; i < 20'000; ++i) {
    const double number = std::pow(10, exponent(random));
    const int digits = 1 + static_cast<int>(random() % 12);
    std::string a = "x", b = "x";
    append_rounded(a, number, digits);
    append_rounded_printf(b, number, digits);
    ASSERT_EQ(a, b) << digits << " digits";
  }
}

}  // namespace
}  // namespace penstock
