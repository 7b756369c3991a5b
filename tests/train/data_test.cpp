// Rows of tensors in memory and in files: shuffled, split for validation, and read without the rest of a
// file.
#include "support/error_message.h"
#include "support/temp_dir.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/safetensors.h>
#include <penstock/train/data.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

namespace penstock::train {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

// Each row of x and target has the number of its example.
Tensors numbered(std::int64_t rows, std::int64_t first = 0) {
  const at::Tensor numbers = at::arange(first, first + rows, at::kLong);
  return {{"x", numbers.to(at::kFloat).unsqueeze(1).expand({rows, 3}).contiguous()}, {"target", numbers}};
}

std::vector<std::int64_t> target_of(const Batch& batch) {
  const at::Tensor target = batch.target.toTensor().contiguous();
  EXPECT_TRUE(at::equal(batch.args.at(0).toTensor().select(1, 2), target.to(at::kFloat)));
  return {target.const_data_ptr<std::int64_t>(), target.const_data_ptr<std::int64_t>() + target.numel()};
}

TEST(TrainTensorData, ShufflesEpochsAndHoldsOutRandomRows) {
  const auto data = tensor_data(
      numbered(23), {.positional = {"x"}, .validation_fraction = 0.2, .order = {.shuffle = true, .seed = 9}});
  ASSERT_EQ(data->validation_rows(), 4);
  const std::vector<std::int64_t> held = target_of(data->validation({0, 4}));
  EXPECT_NE(std::set(held.begin(), held.end()), (std::set<std::int64_t>{19, 20, 21, 22}));
  EXPECT_EQ(target_of(data->validation({1, 3})), std::vector(held.begin() + 1, held.begin() + 3));
  // 19 training rows in batches of 5: 5, 5, 5, 4.
  ASSERT_EQ(data->steps_of(2, 5), 8);
  std::vector<std::vector<std::int64_t>> orders(2);
  for (std::int64_t step = 1; step <= 8; ++step) {
    const std::int64_t rows = data->training_rows(step, 5);
    EXPECT_EQ(rows, step % 4 == 0 ? 4 : 5);
    const std::vector<std::int64_t> batch = target_of(data->training(step, 5, {0, rows}));
    // A rank that reads fewer rows sees the same ones.
    EXPECT_EQ(target_of(data->training(step, 5, {2, 4})), std::vector(batch.begin() + 2, batch.begin() + 4));
    EXPECT_TRUE(at::equal(data->training_target(step, 5).toTensor(), at::tensor(batch, at::kLong)));
    auto& order = orders[static_cast<std::size_t>(step - 1) / 4];
    order.insert(order.end(), batch.begin(), batch.end());
  }
  EXPECT_NE(orders[0], orders[1]);
  for (auto& order : orders) {
    order.insert(order.end(), held.begin(), held.end());
    EXPECT_EQ(order.size(), 23U);
    EXPECT_EQ(std::set(order.begin(), order.end()).size(), 23U) << "a row is missing";
  }
}

TEST(TrainTensorData, TakesValidationRowsFromTable) {
  const auto data =
      tensor_data(numbered(6), {.positional = {"x"}, .validation = memory_table(numbered(3, 100))});
  EXPECT_EQ(data->validation_rows(), 3);
  EXPECT_EQ(target_of(data->validation({1, 3})), (std::vector<std::int64_t>{101, 102}));
  EXPECT_EQ(target_of(data->training(2, 6, {4, 6})), (std::vector<std::int64_t>{4, 5}));
  // Rows that training leaves out stay out.
  const auto less = tensor_data(
      numbered(6),
      {.positional = {"x"}, .validation_fraction = 0.5, .validation = memory_table(numbered(3, 100))});
  EXPECT_EQ(target_of(less->validation({1, 3})), (std::vector<std::int64_t>{101, 102}));
  EXPECT_EQ(target_of(less->training(1, 4, {0, 4})), (std::vector<std::int64_t>{0, 1, 2, 0}));
}

TEST(TrainTensorData, PassesConstantsAndNeedsNoTargetForOwnLoss) {
  Tensors tensors = numbered(4);
  tensors.erase("target");
  const auto data = tensor_data(tensors, {.positional = {"x"},
                                          .keywords = {"use_cache"},
                                          .constants = {{"use_cache", c10::IValue(false)}},
                                          .has_target = false});
  const Batch batch = data->training(1, 4, {1, 3});
  EXPECT_EQ(batch.kwargs.at("use_cache"), c10::IValue(false));
  EXPECT_TRUE(batch.target.isNone());
  EXPECT_TRUE(data->training_target(1, 4).isNone());
  EXPECT_EQ(batch.examples, 2);
}

TEST(TrainTensorTable, ConcatenatesFiles) {
  const test::TempDir dir;
  std::vector<std::filesystem::path> files;
  for (const auto& [first, rows] : {std::pair{0, 5}, {5, 1}, {6, 4}}) {
    files.emplace_back(dir / ("part" + std::to_string(files.size()) + ".safetensors"));
    checkpoint::save_safetensors(files.back(), numbered(rows, first));
  }
  const auto table = safetensors_table(files);
  EXPECT_EQ(table->columns().at("x").shape, (std::vector<std::int64_t>{10, 3}));
  const Tensors all = numbered(10);
  for (const std::vector<std::int64_t>& rows :
       {std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {9, 0, 5, 4, 5}, {4, 5, 6}, {}, {3}})
    for (const char* name : {"x", "target"})
      EXPECT_TRUE(
          at::equal(table->take(name, rows), all.at(name).index_select(0, at::tensor(rows, at::kLong))));
  EXPECT_ERROR(table->take("x", {10}), UsageError, "'x' has 10 rows, but no row 10");
  EXPECT_ERROR(table->take("y", {0}), UsageError, "no tensor 'y'");
}

TEST(TrainTensorTable, NamesFileThatDiffers) {
  const test::TempDir dir;
  const auto save = [&](const std::string& name, const Tensors& tensors) {
    checkpoint::save_safetensors(dir / name, tensors);
    return std::filesystem::path(dir / name);
  };
  const auto good = save("good", numbered(3));
  const auto message = [&](const Tensors& tensors) {
    try {
      safetensors_table({good, good, save("odd", tensors)});
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  Tensors odd = numbered(3);
  odd["x"] = odd["x"].to(at::kDouble);
  EXPECT_THAT(message(odd), testing::AllOf(testing::HasSubstr("'x' is float64[n, 3] in '" + (dir / "odd")),
                                           testing::HasSubstr("but float32[n, 3] in '" + good.string())));
  odd["x"] = at::zeros({3, 4});
  EXPECT_THAT(message(odd), testing::HasSubstr("'x' is float32[n, 4] in"));
  odd.erase("x");
  EXPECT_THAT(message(odd), testing::HasSubstr("odd' has no tensor 'x', which"));
  odd = numbered(3);
  odd["z"] = at::zeros({3});
  EXPECT_THAT(message(odd), testing::HasSubstr("odd' has a tensor 'z', which"));
}

// 49 rows of both tensors in all files, but row 19 of x is in another file than that of the target.
TEST(TrainTensorTable, RefusesFilesWithDifferentNumbersOfRows) {
  const test::TempDir dir;
  const std::string first = dir / "1.safetensors", second = dir / "2.safetensors";
  const auto save = [](const std::string& path, std::int64_t inputs, std::int64_t targets) {
    checkpoint::save_safetensors(
        path, {{"x", at::ones({inputs, 3})}, {"target", at::ones({targets})}, {"names", at::ones({5})}});
  };
  save(first, 20, 19);
  save(second, 29, 30);
  EXPECT_ERROR(tensor_data(safetensors_table({first, second}), {.positional = {"x"}}), UsageError,
               "'target' has 19 rows in '" + first + "', but 'x' has 20");
  save(first, 20, 20);
  save(second, 29, 29);
  // A tensor that is not read may have any number of rows.
  EXPECT_EQ(tensor_data(safetensors_table({first, second}), {.positional = {"x"}})->steps_of(1, 49), 1);
}

TEST(TrainTensorTable, AcceptsScalarsThatAreNotRead) {
  const test::TempDir dir;
  std::vector<std::filesystem::path> files;
  for (const std::int64_t first : {0, 4}) {
    Tensors tensors = numbered(4, first);
    tensors["version"] = at::scalar_tensor(first, at::kLong);
    files.emplace_back(dir / ("from" + std::to_string(first) + ".safetensors"));
    checkpoint::save_safetensors(files.back(), tensors);
  }
  const auto table = safetensors_table(files);
  EXPECT_TRUE(table->columns().at("version").shape.empty());
  EXPECT_EQ(target_of(tensor_data(table, {.positional = {"x"}})->training(1, 3, {0, 3})),
            (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_ERROR(table->take("version", {0}), UsageError, "'version' is a scalar");
  EXPECT_ERROR(table->take("version", {}), UsageError, "'version' is a scalar");
  Tensors other = numbered(4);
  other["version"] = at::zeros({1}, at::kLong);
  checkpoint::save_safetensors(dir / "row", other);
  EXPECT_ERROR(safetensors_table({files[0], dir / "row"}), UsageError, "'version' is int64[n] in '");
}

// A sparse file of 512 GiB: larger than any memory that the test could use.
TEST(TrainTensorTable, ReadsOnlyRequestedRows) {
  const test::TempDir dir;
  const std::string path = dir / "large.safetensors";
  constexpr std::uint64_t rows = 1ULL << 27, row_bytes = 4096;
  const std::string header = "{\"x\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(rows) + "," +
                             std::to_string(row_bytes) + "],\"data_offsets\":[0," +
                             std::to_string(rows * row_bytes) + "]}}";
  {
    std::ofstream file(path, std::ios::binary);
    for (std::size_t i = 0; i < 8; ++i) file.put(static_cast<char>(header.size() >> (8 * i) & 0xff));
    file << header;
    file.seekp(static_cast<std::streamoff>(8 + header.size() + (rows - 1) * row_bytes));
    file << std::string(row_bytes, '\7');
    if (!file.flush()) GTEST_SKIP() << "the file system has no sparse files of this size";
  }
  const auto table = safetensors_table({path});
  const at::Tensor taken = table->take("x", {static_cast<std::int64_t>(rows) - 1, 0, 1 << 26});
  EXPECT_EQ(taken.sizes().vec(), (std::vector<std::int64_t>{3, 4096}));
  EXPECT_TRUE(taken[0].eq(7).all().item<bool>());
  EXPECT_TRUE(taken.narrow(0, 1, 2).eq(0).all().item<bool>());
}

// Each held-out sequence of the text is one validation row, whose number is fixed, and is not trained on.
TEST(TrainValidation, CoversHeldOutTextOnce) {
  std::string text;  // without equal sequences
  for (int i = 0; i < 400; ++i) text += std::to_string(i) + (i % 3 == 0 ? "-" : " ");
  const Vocabulary vocabulary(text);
  const auto data = text_data(text, vocabulary, {.length = 7, .validation_fraction = 0.25, .seed = 3});
  const auto all_rows = static_cast<std::int64_t>((text.size() - 1 + 6) / 7);
  const std::int64_t rows = all_rows / 4;
  ASSERT_EQ(data->validation_rows(), rows);
  const at::Tensor all = data->validation({0, rows}).args[0].toTensor();
  const auto text_of_row = [&](const at::Tensor& row) {
    const at::Tensor tokens = row.contiguous();
    return vocabulary.decode(
        {tokens.const_data_ptr<std::int64_t>(), tokens.const_data_ptr<std::int64_t>() + 7});
  };
  std::multiset<std::string> seen, expected;
  for (std::int64_t row = 0; row < rows; ++row) {
    const at::Tensor alone = data->validation({row, row + 1}).args[0].toTensor()[0];
    EXPECT_TRUE(at::equal(alone, all[row]));
    seen.insert(text_of_row(alone));
  }
  EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), static_cast<std::size_t>(rows));
  for (std::int64_t step = 1; step <= all_rows - rows; ++step)
    seen.insert(text_of_row(data->training(step, 1, {0, 1}).args[0].toTensor()[0]));
  for (std::size_t begin = 0; begin + 1 < text.size(); begin += 7) {
    std::string row = text.substr(begin, std::min<std::size_t>(7, text.size() - 1 - begin));
    row.resize(7, vocabulary.characters()[0]);  // the last one is padded
    expected.insert(row);
  }
  EXPECT_EQ(seen, expected);
}

}  // namespace
}  // namespace penstock::train
