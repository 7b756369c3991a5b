// Streams of tokens in files and in memory, and their sequences.
#include "support/error_message.h"
#include "support/temp_dir.h"

#include <penstock/base/error.h>
#include <penstock/train/data.h>
#include <penstock/train/tokens.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

namespace penstock::train {
namespace {

template <class Token>
void write_file(const std::string& path, const std::vector<std::uint32_t>& tokens) {
  std::ofstream file(path, std::ios::binary);
  for (const std::uint32_t token : tokens)
    for (std::size_t byte = 0; byte < sizeof(Token); ++byte) file.put(static_cast<char>(token >> (8 * byte)));
}

std::vector<std::int64_t> row_of(const TensorTable& table, const std::string& name, std::int64_t row) {
  const at::Tensor tensor = table.take(name, {row});
  return {tensor.const_data_ptr<std::int64_t>(), tensor.const_data_ptr<std::int64_t>() + tensor.numel()};
}

// Every position of the stream, one by one.
TEST(TrainTokens, SequencesContainEveryTokenOnce) {
  const test::TempDir dir;
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const std::size_t count : {2U, 3U, 12U, 13U, 14U, 100U}) {
    std::vector<std::uint32_t> tokens(count);
    for (std::uint32_t& token : tokens) token = static_cast<std::uint32_t>(random() % 60000);
    const std::size_t first = random() % (count + 1), second = first + random() % (count + 1 - first);
    const auto at = [&](std::size_t i) { return tokens.begin() + static_cast<std::ptrdiff_t>(i); };
    write_file<std::uint16_t>(dir / "0", {at(0), at(first)});
    write_file<std::uint16_t>(dir / "1", {at(first), at(second)});
    write_file<std::uint16_t>(dir / "2", {at(second), at(count)});
    write_file<std::uint32_t>(dir / "wide", tokens);
    const std::vector<std::shared_ptr<const TokenStream>> streams{
        token_files({dir / "0", dir / "1", dir / "2"}, TokenDtype::Uint16),
        token_files({dir / "wide"}, TokenDtype::Uint32), token_memory(tokens)};
    for (const auto& stream : streams) {
      ASSERT_EQ(stream->size(), static_cast<std::int64_t>(count));
      EXPECT_EQ(largest_token(*stream), *std::max_element(tokens.begin(), tokens.end()));
      constexpr std::int64_t length = 4;
      const auto table = sequence_table(stream, {.length = length, .input = "x"});
      std::vector<std::int64_t> inputs, targets;
      const std::int64_t rows = table->columns().at("x").shape[0];
      for (std::int64_t row = 0; row < rows; ++row) {
        for (const std::int64_t token : row_of(*table, "x", row)) inputs.push_back(token);
        for (const std::int64_t token : row_of(*table, "target", row)) targets.push_back(token);
      }
      ASSERT_EQ(inputs.size(), static_cast<std::size_t>(rows * length));
      EXPECT_LT(rows * length, static_cast<std::int64_t>(count) - 1 + length) << "a row consists of padding";
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const bool there = i + 1 < count;
        EXPECT_EQ(inputs[i], there ? static_cast<std::int64_t>(tokens[i]) : 0);
        EXPECT_EQ(targets[i], there ? static_cast<std::int64_t>(tokens[i + 1]) : -100);
      }
    }
  }
}

TEST(TrainTokens, ReadsOnlyRequestedTokens) {
  const test::TempDir dir;
  const std::string path = dir / "large.bin";
  constexpr std::int64_t count = std::int64_t{1} << 38;  // 512 GiB, sparse
  write_file<std::uint16_t>(path, {7, 8, 9});
  std::error_code error;
  std::filesystem::resize_file(path, static_cast<std::uintmax_t>(count) * 2, error);
  if (error) GTEST_SKIP() << "the file system has no sparse files of this size";
  const auto table = sequence_table(token_files({path}, TokenDtype::Uint16), {.length = 1024});
  EXPECT_EQ(table->columns().at("tokens").shape[0], count / 1024);
  EXPECT_EQ(row_of(*table, "tokens", 0)[2], 9);
  EXPECT_EQ(row_of(*table, "target", count / 1024 - 1).back(), -100);
}

TEST(TrainTokens, ReportsFilesThatBecameShorter) {
  const test::TempDir dir;
  write_file<std::uint16_t>(dir / "tokens", std::vector<std::uint32_t>(10000, 5));
  const auto stream = token_files({dir / "tokens"}, TokenDtype::Uint16);
  std::filesystem::resize_file(dir / "tokens", 8);
  std::vector<std::int64_t> tokens(4);
  stream->read(0, tokens);
  EXPECT_EQ(tokens, std::vector<std::int64_t>(4, 5));
  EXPECT_ERROR(stream->read(9000, tokens), StorageError, "has become shorter");
}

TEST(TrainTokens, RefusesTokensOutsideVocabulary) {
  const test::TempDir dir;
  write_file<std::uint32_t>(dir / "a", {1, 2, 3});
  write_file<std::uint32_t>(dir / "b", {4, 70000, 5});
  const auto stream = token_files({dir / "a", dir / "b"}, TokenDtype::Uint32);
  const auto table = sequence_table(stream, {.length = 2, .vocabulary = 10});
  EXPECT_EQ(row_of(*table, "tokens", 0), (std::vector<std::int64_t>{1, 2}));
  EXPECT_ERROR(table->take("target", {1}), UsageError, "b' is 70000, but the vocabulary has 10 tokens");
  EXPECT_ERROR(table->take("tokens", {2}), UsageError, "token 1 of '");
  write_file<std::uint16_t>(dir / "c", {1});
  EXPECT_ERROR(token_files({dir / "c"}, TokenDtype::Uint32), UsageError, "not a multiple of 4");
  EXPECT_ERROR(sequence_table(token_files({dir / "c"}, TokenDtype::Uint16), {}), UsageError, "has 1 token;");
  EXPECT_ERROR(sequence_table(stream, {.length = 0}), UsageError, "at least one token");
  EXPECT_ERROR(token_files({dir / "missing"}, TokenDtype::Uint16), StorageError, "cannot open");
}

}  // namespace
}  // namespace penstock::train
