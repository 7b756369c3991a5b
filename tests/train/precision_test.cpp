// Reduced precision over many topologies, compared with the same arithmetic in Python
// (archives/precision.txt, make_precision.py).
#include "support/error_message.h"
#include "support/temp_dir.h"
#include "train/archive_run.h"
#include "train/loop/loss_scale.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/checkpoint.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

namespace penstock::train {
namespace {

struct PythonStep {
  double loss = 0, scale = 0;
  bool skipped = false;
};

std::map<std::string, std::vector<PythonStep>> python_steps() {
  std::ifstream file(recipe_file("precision.txt"));
  std::map<std::string, std::vector<PythonStep>> steps;
  std::string recipe;
  std::int64_t step = 0;
  PythonStep one;
  while (file >> recipe >> step >> one.loss >> one.scale >> one.skipped) steps[recipe].push_back(one);
  return steps;
}

const std::map<std::string, OptimizerOptions>& optimizers() {
  static const std::map<std::string, OptimizerOptions> all = {
      {"sgd", {.kind = OptimizerKind::Sgd, .weight_decay = 0.01, .momentum = 0.8, .nesterov = true}},
      {"adamw", {.kind = OptimizerKind::AdamW, .weight_decay = 0.1}}};
  return all;
}

RunOptions options_for(const std::string& optimizer, const Layout& layout, Precision precision) {
  RunOptions options;
  options.parallel = layout.parallel;
  options.accumulate = layout.accumulate;
  options.steps = kSteps;
  options.batch = 8;
  options.optimizer = optimizers().at(optimizer);
  options.learning_rate.peak = optimizer == "sgd" ? 0.1 : 0.01;
  options.precision = precision;
  return options;
}

RunOptions master_options(const std::string& optimizer, const Layout& layout,
                          Precision precision = Precision::Bfloat16) {
  RunOptions options = options_for(optimizer, layout, precision);
  options.parameter_dtype = ParameterDtype::Bfloat16;
  return options;
}

const ArchiveRun kBfloat16Model{.model = "language_bf16", .data = "language"};
const ArchiveRun kFloat16Model{.model = "language_fp16", .data = "language"};

// The recipe of a layout: Python splits the batch into the same parts.
std::string in_parts(const std::string& recipe, const Layout& layout) {
  return recipe + "_" + std::to_string(layout.parallel.microbatches * layout.parallel.dp * layout.accumulate);
}

class Records : public Observer {
 public:
  void on_step(const StepRecord& record) override { all.push_back(record); }
  void on_message(const std::string& message) override { messages.push_back(message); }
  std::vector<StepRecord> all;
  std::vector<std::string> messages;
};

// Training amplifies the differences of rounding: if the rows of a batch are permuted, the losses of Python
// change by up to 0.3% in the first 4 steps, later by up to 0.6% with AdamW and 1.9% with SGD.
void expect_losses(const std::vector<double>& losses, const std::vector<PythonStep>& python,
                   const std::string& optimizer) {
  ASSERT_EQ(losses.size(), python.size());
  const double later = optimizer == "adamw" ? 0x1p-7 : 0x1p-5;
  for (std::size_t i = 0; i < python.size(); ++i)
    EXPECT_NEAR(losses[i], python[i].loss, (i < 4 ? 0x1p-8 : later) * python[i].loss) << "step " << i + 1;
}

void expect_bitwise_resume(RunOptions options, std::int64_t after, const ArchiveRun& archive = {}) {
  const test::TempDir dir;
  const RunResult complete = train_archive(archive, options);
  const std::int64_t steps = options.steps;
  options.checkpoint.directory = dir / "c";
  options.steps = after;
  train_archive(archive, options);
  options.checkpoint.resume = true;
  options.steps = steps;
  const RunResult resumed = train_archive(archive, options);
  ASSERT_EQ(resumed.first_step, after + 1);
  for (std::size_t i = 0; i < resumed.losses.size(); ++i)
    EXPECT_EQ(resumed.losses[i], complete.losses.at(i + static_cast<std::size_t>(after)));
  for (const auto& [name, value] : complete.parameters)
    EXPECT_TRUE(at::equal(resumed.parameters.at(name), value)) << name;
}

// The sums over microbatches are rounded differently, to 8 bits with bfloat16 and 11 bits with float16.
TEST(TrainPrecision, AutocastMatchesPythonInEveryTopology) {
  at::set_num_threads(1);
  const auto expected = python_steps();
  const std::map<std::string, std::pair<Precision, double>> precisions = {
      {"bf16", {Precision::Bfloat16, 0x1p-6}}, {"fp16", {Precision::Float16, 0x1p-9}}};
  for (const auto& [precision, choice] : precisions) {
    for (const auto& [optimizer, unused] : optimizers()) {
      for (const Layout& layout : layouts()) {
        SCOPED_TRACE(precision + " " + optimizer + ", " + text_of(layout));
        RunOptions options = options_for(optimizer, layout, choice.first);
        options.loss_scale = {.initial = 1024, .growth_interval = optimizer == "sgd" ? 3 : 5};
        Records records;
        train_archive({}, options, &records);
        const std::vector<PythonStep>& python = expected.at(precision + "_" + optimizer);
        ASSERT_EQ(records.all.size(), python.size());
        for (std::size_t i = 0; i < python.size(); ++i) {
          EXPECT_NEAR(records.all[i].loss, python[i].loss, choice.second * python[i].loss)
              << "step " << i + 1;
          EXPECT_EQ(records.all[i].loss_scale.value_or(1), python[i].scale) << "step " << i + 1;
          EXPECT_FALSE(records.all[i].skipped);
        }
      }
    }
  }
}

// The gradients of the logits overflow for the first scales. Sums over fewer rows may overflow one scale
// later.
TEST(TrainPrecision, OverflowSkipsUpdatesOnAllRanks) {
  at::set_num_threads(1);
  const std::vector<PythonStep> python = python_steps().at("fp16_overflow");
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    RunOptions options = options_for("sgd", layout, Precision::Float16);
    options.loss_scale.initial = python[0].scale;
    Records records;
    train_archive({}, options, &records);
    ASSERT_EQ(records.all.size(), python.size());
    std::size_t skipped = 0;
    for (std::size_t i = 0; i < python.size(); ++i) {
      const StepRecord& record = records.all[i];
      EXPECT_EQ(record.loss_scale, std::ldexp(python[0].scale, -static_cast<int>(skipped)));
      if (skipped == i) {  // no update yet
        EXPECT_NEAR(record.loss, python[i].loss, 0x1p-9 * python[i].loss);
      }
      skipped += record.skipped ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(skipped), 7, 2);
    const auto notes =
        std::count_if(records.messages.begin(), records.messages.end(), [](const std::string& message) {
          return message.find("a gradient overflowed with a loss scale of ") != std::string::npos;
        });
    EXPECT_EQ(static_cast<std::size_t>(notes), skipped);
    EXPECT_LT(records.all.back().loss, 5);
  }
}

TEST(TrainPrecision, ResumedRunsAreBitwiseEqual) {
  at::set_num_threads(1);
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    RunOptions options = options_for("adamw", layout, Precision::Float16);
    options.steps = 6;
    options.loss_scale = {.initial = 0x1p18, .growth_interval = 2};
    expect_bitwise_resume(options, 3);
    expect_bitwise_resume(options_for("adamw", layout, Precision::Bfloat16), 5);
  }
}

// The gradients of each part are rounded to bfloat16.
TEST(TrainMasterWeights, MatchPythonInEveryTopology) {
  at::set_num_threads(1);
  const auto expected = python_steps();
  for (const auto& [optimizer, unused] : optimizers()) {
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(optimizer + ", " + text_of(layout));
      expect_losses(train_archive({}, master_options(optimizer, layout)).losses,
                    expected.at(in_parts("master_" + optimizer, layout)), optimizer);
      expect_losses(train_archive({}, master_options(optimizer, layout, Precision::Float32)).losses,
                    expected.at(in_parts("copies_" + optimizer, layout)), optimizer);
    }
  }
}

// Autocast alone rounds only the operands of products: the embedding and the norms stay in float32.
TEST(TrainMasterWeights, RoundAllParameters) {
  at::set_num_threads(1);
  for (const Layout& layout : layouts()) {
    RunOptions options = master_options("adamw", layout);
    options.steps = 1;
    const std::vector<double> rounded = train_archive({}, options).losses;
    options.parameter_dtype = ParameterDtype::Auto;
    EXPECT_NE(rounded, train_archive({}, options).losses) << text_of(layout);
  }
}

TEST(TrainMasterWeights, ResumedRunsAreBitwiseEqual) {
  at::set_num_threads(1);
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    expect_bitwise_resume(master_options("adamw", layout), 5);
  }
}

// Updates smaller than the resolution of bfloat16 accumulate in the master weights, which the checkpoint
// contains in float32.
TEST(TrainMasterWeights, CheckpointsContainFloat32) {
  at::set_num_threads(1);
  RunOptions options = master_options("sgd", layouts()[0]);
  options.steps = 1;
  options.learning_rate.peak = 0;
  const auto initial = train_archive({}, options).parameters;
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    const test::TempDir dir;
    options = master_options("sgd", layout);
    options.learning_rate.peak = 1e-5;
    options.steps = 2;
    options.checkpoint.directory = dir / "c";
    const RunResult result = train_archive({}, options);
    const checkpoint::Checkpoint saved(*result.checkpoint);
    for (const checkpoint::StoredTensor& tensor : saved.tensors())
      if (tensor.kind != checkpoint::PieceKind::Buffer) {
        EXPECT_EQ(tensor.dtype, at::kFloat) << tensor.name;
      }
    const at::Tensor& before = initial.at("token.weight");
    const at::Tensor& after = result.parameters.at("token.weight");
    EXPECT_EQ(after.scalar_type(), at::kFloat);
    EXPECT_FALSE(at::equal(after, before));
    EXPECT_LT((after - before).abs().max().item<double>(), 1e-4);
  }
}

TEST(TrainMasterWeights, LoadInOtherTopologies) {
  at::set_num_threads(1);
  const test::TempDir dir;
  RunOptions options = master_options("adamw", layouts()[1]);
  options.checkpoint = {.directory = dir / "c", .every = 1, .keep = 100};
  const std::vector<double> complete = train_archive({}, options).losses;
  constexpr std::int64_t step = 4;
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    const test::TempDir copy;
    const std::string name = "c/" + checkpoint::checkpoint_name(step);
    std::filesystem::create_directory(copy / "c");
    std::filesystem::copy(dir / name, copy / name, std::filesystem::copy_options::recursive);
    RunOptions other = master_options("adamw", layout);
    other.checkpoint = {.directory = copy / "c", .resume = true};
    const RunResult resumed = train_archive({}, other);
    ASSERT_EQ(resumed.first_step, step + 1);
    for (std::size_t i = 0; i < resumed.losses.size(); ++i) {
      const double expected = complete.at(i + static_cast<std::size_t>(step));
      EXPECT_NEAR(resumed.losses[i], expected, 0x1p-6 * expected);
    }
  }
}

TEST(TrainMasterWeights, RefuseAutocastToFloat16) {
  RunOptions options;
  options.parameter_dtype = ParameterDtype::Bfloat16;
  check(options);
  options.precision = Precision::Float16;
  EXPECT_ERROR(check(options), UsageError,
               "parameters in bfloat16 cannot be combined with autocast to float16");
}

// The parameters of the archive are bfloat16 or float16.
TEST(TrainReducedArchive, MatchesPythonInEveryTopology) {
  at::set_num_threads(1);
  const auto expected = python_steps();
  for (const auto& [optimizer, unused] : optimizers()) {
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(optimizer + ", " + text_of(layout));
      RunOptions options = options_for(optimizer, layout, Precision::Float32);
      Records records;
      expect_losses(train_archive(kBfloat16Model, options, &records).losses,
                    expected.at(in_parts("archive_" + optimizer, layout)), optimizer);
      EXPECT_EQ(records.messages.back(),
                "parameters in bfloat16 are trained with master weights and optimizer states in float32");
      EXPECT_FALSE(records.all.back().loss_scale.has_value());
      options.loss_scale = {.initial = 1024, .growth_interval = 5};
      records = {};
      const std::vector<PythonStep>& python = expected.at(in_parts("float16_" + optimizer, layout));
      expect_losses(train_archive(kFloat16Model, options, &records).losses, python, optimizer);
      for (std::size_t i = 0; i < python.size(); ++i)
        EXPECT_EQ(records.all.at(i).loss_scale, python[i].scale) << "step " << i + 1;
    }
  }
}

// Only the order of sums differs.
TEST(TrainReducedArchive, ConvertsToFloat32) {
  at::set_num_threads(1);
  const auto expected = python_steps();
  ArchiveRun archive = kBfloat16Model;
  archive.archive.dtype = at::kFloat;
  for (const auto& [optimizer, unused] : optimizers()) {
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(optimizer + ", " + text_of(layout));
      const RunResult result = train_archive(archive, options_for(optimizer, layout, Precision::Float32));
      const std::vector<PythonStep>& python = expected.at("float32_" + optimizer);
      ASSERT_EQ(result.losses.size(), python.size());
      for (std::size_t i = 0; i < python.size(); ++i)
        EXPECT_NEAR(result.losses[i], python[i].loss, 1e-4 * python[i].loss) << "step " << i + 1;
    }
  }
}

TEST(TrainReducedArchive, ConvertsFloat16ToBfloat16) {
  at::set_num_threads(1);
  ArchiveRun archive = kFloat16Model;
  archive.archive.dtype = at::kBFloat16;
  Records records;
  const RunResult result =
      train_archive(archive, options_for("adamw", layouts()[0], Precision::Float32), &records);
  EXPECT_FALSE(records.all.back().loss_scale.has_value());
  // The initial weights are rounded twice.
  const std::vector<PythonStep> python = python_steps().at("archive_adamw_1");
  for (std::size_t i = 0; i < python.size(); ++i)
    EXPECT_NEAR(result.losses.at(i), python[i].loss, 0x1p-6 * python[i].loss) << "step " << i + 1;
}

TEST(TrainReducedArchive, ResumedRunsAreBitwiseEqual) {
  at::set_num_threads(1);
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    expect_bitwise_resume(options_for("adamw", layout, Precision::Float32), 5, kBfloat16Model);
    RunOptions options = options_for("sgd", layout, Precision::Float32);
    options.steps = 6;
    options.loss_scale = {.initial = 0x1p18, .growth_interval = 2};
    expect_bitwise_resume(options, 3, kFloat16Model);
  }
}

bool is_rounded(const at::Tensor& tensor) {
  return at::equal(tensor, tensor.to(at::kBFloat16).to(tensor.scalar_type()));
}

TEST(TrainReducedArchive, CheckpointsContainMasterWeights) {
  at::set_num_threads(1);
  const test::TempDir dir;
  RunOptions options = options_for("adamw", layouts()[0], Precision::Float32);
  options.steps = 2;
  options.checkpoint.directory = dir / "c";
  options.parameters.freeze = {"layers.0"};
  const RunResult result = train_archive(kBfloat16Model, options);
  const checkpoint::Checkpoint saved(*result.checkpoint);
  for (const checkpoint::StoredTensor& tensor : saved.tensors()) {
    const bool frozen = tensor.name.starts_with("layers.0.");
    EXPECT_EQ(tensor.dtype, frozen ? at::kBFloat16 : at::kFloat) << tensor.name;
  }
  EXPECT_FALSE(is_rounded(result.parameters.at("token.weight")));
  // Initial weights keep their digits, whatever the dtype of the model.
  options.checkpoint = {};
  options.parameters = {};
  options.init = InitialWeights{.path = *result.checkpoint};
  options.learning_rate.peak = 0;
  options.optimizer.weight_decay = 0;
  options.steps = 1;
  const auto loaded = train_archive(kBfloat16Model, options).parameters;
  EXPECT_TRUE(at::equal(loaded.at("token.weight"), result.parameters.at("token.weight")));
  EXPECT_TRUE(is_rounded(loaded.at("layers.0.up.weight")));
}

// A checkpoint of a model in bfloat16 that had no master weights, or was converted to float32.
TEST(TrainReducedArchive, ResumesFromOtherDtypes) {
  at::set_num_threads(1);
  const test::TempDir dir;
  RunOptions options = options_for("adamw", layouts()[0], Precision::Float32);
  options.checkpoint = {.directory = dir / "c", .every = 4, .keep = 9};
  ArchiveRun converted = kBfloat16Model;
  converted.archive.dtype = at::kFloat;
  const std::vector<double> complete = train_archive(converted, options).losses;
  std::filesystem::remove_all(dir / ("c/" + checkpoint::checkpoint_name(8)));
  std::filesystem::remove_all(dir / ("c/" + checkpoint::checkpoint_name(12)));
  options.checkpoint.resume = true;
  const RunResult resumed = train_archive(kBfloat16Model, options);
  ASSERT_EQ(resumed.first_step, 5);
  for (std::size_t i = 0; i < resumed.losses.size(); ++i)
    EXPECT_NEAR(resumed.losses[i], complete[i + 4], 0x1p-6 * complete[i + 4]);
}

// The dtypes of the parameters that stages compute with and that the optimizer updates.
struct DtypesHook : RankHook {
  explicit DtypesHook(std::map<std::string, at::ScalarType>& into) : dtypes(into) {}
  void on_phase(RunPhase phase, const RankState& state) override {
    if (phase != RunPhase::Update) return;
    for (const auto& [index, stage] : state.stages)
      for (const value::NamedTensor& item : stage->parameters())
        dtypes[item.name] = item.tensor.scalar_type();
  }
  std::map<std::string, at::ScalarType>& dtypes;
};

TEST(TrainReducedArchive, AdaptersHaveMasterWeights) {
  at::set_num_threads(1);
  ArchiveRun archive = kBfloat16Model;
  archive.archive.lora = LoraOptions{.patterns = {"layers.*"}, .rank = 2};
  ArchiveRun exact = archive;
  exact.model = "language";
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    RunOptions options = options_for("adamw", layout, Precision::Float32);
    std::map<std::string, at::ScalarType> dtypes;
    const auto make_hook = [&](Rank rank) {
      return rank.value == 0 ? std::make_unique<DtypesHook>(dtypes) : nullptr;
    };
    const std::vector<double> losses = train_archive(archive, options, nullptr, make_hook).losses;
    const std::vector<double> expected = train_archive(exact, options).losses;
    for (std::size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], expected.at(i), 0x1p-6 * expected[i]);
    for (const auto& [name, dtype] : dtypes) {
      const bool adapter = name.find(".lora_") != std::string::npos;
      EXPECT_EQ(dtype, adapter ? at::kFloat : at::kBFloat16) << name;
    }
    EXPECT_FALSE(dtypes.empty());
    expect_bitwise_resume(options, 5, archive);
  }
  archive.archive.dtype = at::kFloat;
  EXPECT_ERROR(train_archive(archive, options_for("adamw", layouts()[0], Precision::Float32)), UsageError,
               "the dtype of a model with LoRA cannot be converted");
}

TEST(TrainPrecision, LossScaleGrowsAndShrinksLikeGradScaler) {
  RunOptions options;
  options.precision = Precision::Float16;
  options.loss_scale = {.initial = 4, .growth_interval = 2};
  LossScale scale(options);
  // GradScaler(init_scale=4, growth_interval=2): an overflow also restarts the count of updates.
  for (const auto& [overflow, expected] : std::vector<std::pair<bool, double>>{
           {false, 4}, {true, 2}, {false, 2}, {false, 4}, {false, 4}, {true, 2}, {true, 1}, {true, 1}}) {
    scale.update(overflow);
    EXPECT_EQ(scale.value(), expected);
  }
  EXPECT_FALSE(scale.can_shrink());
  scale.update(false);
  LossScale other(options);
  other.restore(scale.text());
  other.update(false);
  EXPECT_EQ(other.value(), 2);
  EXPECT_ERROR(other.restore("big 3"), ParseError, "'big 3' is not the state of a loss scale");
}

TEST(TrainPrecision, LossScaleMustBePowerOfTwo) {
  for (const double scale : {0.0, 0.5, 3.0, std::ldexp(1, 128), std::nan("")}) {
    RunOptions options;
    options.loss_scale.initial = scale;
    EXPECT_ERROR(check(options), UsageError, "loss_scale.initial must be a power of two");
  }
}

}  // namespace
}  // namespace penstock::train
