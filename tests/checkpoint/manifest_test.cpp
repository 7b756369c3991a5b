// Manifests with a very large number of pieces.
#include "checkpoint/commit/manifest.h"

#include <penstock/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <random>

namespace penstock::checkpoint {
namespace {

using ::testing::HasSubstr;

std::string text_of(std::vector<std::int64_t> shape, const std::vector<Region>& parts) {
  Manifest manifest{.step = 1, .files = {{"shard-0.safetensors", 8, 0}}};
  manifest.tensors.push_back({.name = "w", .shape = std::move(shape)});
  for (std::size_t i = 0; i < parts.size(); ++i)
    manifest.tensors.back().pieces.push_back({0, "w" + std::to_string(i), parts[i], 0});
  return manifest_text(manifest);
}

//! The result of reading the manifest, and the CPU seconds it took.
std::pair<std::string, double> judged(const std::string& text) {
  const std::clock_t start = std::clock();
  std::string said = "accepted";
  try {
    parse_manifest(text, "here");
  } catch (const ParseError& error) {
    said = error.message();
  }
  return {said, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC};
}

// About one second is documented; the limit leaves room for a machine four times slower, and for a sanitizer.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr double kLimit = 60;
#else
constexpr double kLimit = 4;
#endif

TEST(CheckpointManifest, WithManyPiecesIsReadQuickly) {
  std::vector<Region> elements, cells;
  for (std::int64_t i = 0; i < 45'000; ++i) elements.emplace_back(FlatRange{i, i + 1});
  for (std::int64_t i = 0; i < 200; ++i)
    for (std::int64_t j = 0; j < 225; ++j) cells.emplace_back(Box{{i, j}, {1, 1}});
  std::mt19937 random(3);
  for (auto* parts : {&elements, &cells}) {
    const std::vector<std::int64_t> shape =
        parts == &cells ? std::vector<std::int64_t>{200, 225} : std::vector<std::int64_t>{45'000};
    std::shuffle(parts->begin(), parts->end(), random);
    const auto [said, seconds] = judged(text_of(shape, *parts));
    EXPECT_EQ(said, "accepted");
    EXPECT_LT(seconds, kLimit);
    parts->pop_back();
    EXPECT_THAT(judged(text_of(shape, *parts)).first, HasSubstr("1 of its elements are in no file"));
  }
}

TEST(CheckpointManifest, WithTooManyOverlapsIsRejected) {
  // Crossing thin boxes in three dims leave a number of remainders that is quadratic in their count.
  constexpr std::int64_t size = 4000;
  std::mt19937 random(3);
  std::vector<Region> parts;
  for (int i = 0; i < 15'000; ++i) {
    Box box{{0, 0, 0}, {size, size, size}};
    const std::size_t axis = random() % 3;
    for (std::size_t d = 0; d < 3; ++d) {
      if (d == axis) continue;
      box.offsets[d] = static_cast<std::int64_t>(random() % (size - 1));
      box.lengths[d] = 1;
    }
    parts.emplace_back(std::move(box));
  }
  const auto [said, seconds] = judged(text_of({size, size, size}, parts));
  EXPECT_THAT(said, HasSubstr("15000 pieces overlap in too many ways"));
  EXPECT_LT(seconds, kLimit);
}

}  // namespace
}  // namespace penstock::checkpoint
