// Invalid input that can be detected from files and options: one message with a hint and exit code 2, before
// any rank starts.
#include "support/program.h"

#include <penstock/checkpoint/safetensors.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/comm/thread_ranks.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <thread>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Tensors = std::map<std::string, at::Tensor>;
using Words = std::vector<std::string>;

const std::string kArchives = PENSTOCK_SOURCE_DIR "/tests/train/archives/";

// The files of the cases, by name in one directory. The language model takes tokens int64[n, 6] below 17 and
// a keyword argument, weight float32[n], n from 2 to 64; it returns features [n, 6, 16] and logits [n, 6,
// 17].
void write_files(const TempDir& dir) {
  namespace fs = std::filesystem;
  const Tensors good = checkpoint::load_safetensors(kArchives + "language.safetensors");
  const at::Tensor tokens = good.at("tokens"), target = good.at("target");
  const auto with = [&](const std::string& file, const std::string& name, const at::Tensor& tensor) {
    Tensors tensors = good;
    tensors[name] = tensor;
    checkpoint::save_safetensors(dir / file, tensors);
  };
  checkpoint::save_safetensors(dir / "good.safetensors", good);
  checkpoint::save_safetensors(dir / "no_target.safetensors",
                               {{"tokens", tokens}, {"weight", good.at("weight")}});
  checkpoint::save_safetensors(dir / "misnamed.safetensors",
                               {{"token", tokens}, {"weight", good.at("weight")}, {"target", target}});
  checkpoint::save_safetensors(dir / "empty.safetensors", {{"tokens", tokens.narrow(0, 0, 0)},
                                                           {"weight", good.at("weight").narrow(0, 0, 0)},
                                                           {"target", target.narrow(0, 0, 0)}});
  with("float_tokens.safetensors", "tokens", tokens.to(at::kFloat));
  with("double_weight.safetensors", "weight", good.at("weight").to(at::kDouble));
  with("one_weight.safetensors", "weight", at::ones({}));
  with("few_weights.safetensors", "weight", at::ones({3}));
  with("short_tokens.safetensors", "tokens", tokens.narrow(1, 0, 5));
  with("large_token.safetensors", "tokens", tokens + 17);
  with("class_17.safetensors", "target", target + 17);
  with("class_negative.safetensors", "target", target - 18);
  with("float_target.safetensors", "target", target.to(at::kFloat));
  with("flat_target.safetensors", "target", target.select(1, 0));
  const auto part = [&](const std::string& file, std::int64_t inputs, std::int64_t targets) {
    checkpoint::save_safetensors(dir / file, {{"tokens", tokens.narrow(0, 0, inputs)},
                                              {"weight", good.at("weight").narrow(0, 0, inputs)},
                                              {"target", target.narrow(0, 0, targets)}});
  };
  part("more_inputs.safetensors", 10, 9);
  part("more_targets.safetensors", 9, 10);
  Tensors regression = checkpoint::load_safetensors(kArchives + "mlp.safetensors");
  checkpoint::save_safetensors(dir / "mlp.safetensors", regression);
  checkpoint::save_safetensors(dir / "wide.safetensors",
                               {{"input", at::zeros({20, 7})}, {"target", regression["target"]}});
  checkpoint::save_safetensors(
      dir / "images.safetensors",
      {{"x", at::zeros({8, 8, 8, 2})}, {"input", at::zeros({8, 8, 8, 2})}, {"target", at::zeros({8, 3})}});
  const at::Tensor input = regression["input"];
  const auto with_target = [&](const std::string& file, const at::Tensor& values) {
    checkpoint::save_safetensors(dir / file, {{"input", input}, {"target", values}});
  };
  with_target("soft.safetensors", at::full({20, 3}, 1.0 / 3));
  with_target("sum_of_2.safetensors", at::full({20, 3}, 2.0 / 3));
  with_target("classes.safetensors", at::arange(20).remainder(3));
  at::Tensor nan = at::full({20, 3}, 1.0 / 3);
  nan.select(0, 19).select(0, 2).fill_(std::numeric_limits<float>::quiet_NaN());
  with_target("nan.safetensors", nan);
  regression["target"] = regression["target"].select(1, 0);
  checkpoint::save_safetensors(dir / "mlp_flat.safetensors", regression);
  checkpoint::save_safetensors(dir / "x.safetensors", {{"x", at::zeros({4, 6})}});
  checkpoint::save_safetensors(dir / "lstm.safetensors", {{"x", at::zeros({4, 5, 3})}});
  std::ofstream(dir / "short.txt") << "abc";
  std::ofstream(dir / "empty.txt");
  std::ofstream(dir / "notes.pt2") << "These are notes.\n";
  std::ofstream(dir / "notes.txt") << "These are notes, and neither a model nor tensors.\n";
  std::ofstream(dir / "key.toml") << "steps = 2\nmicrobatchs = 2\n";
  std::ofstream(dir / "type.toml") << "steps = \"two\"\n";
  std::ofstream(dir / "syntax.toml") << "steps = = 2\n";
  std::ofstream(dir / "gpt.toml") << "[gpt]\nlayers = 2\n";
  fs::create_directories(dir / "folder/earlier/step-00000002");
  fs::copy(kArchives + "language.pt2", dir / "folder/model.pt2");
  comm::run_thread_ranks(1, [&](comm::World& world) {
    checkpoint::CheckpointWriter writer(dir / "folder/other_model", world.group());
    writer.save(2, {checkpoint::full_piece("other.weight", at::ones({2}))}, {});
    writer.wait();
  });
}

struct Mistake {
  std::string name;
  Words words;       //!< `@x` is file x of the directory, `%x` of the archives
  std::string text;  //!< text that the error must contain
  std::string hint;  //!< text that the hint must contain
};

Mistake train(const std::string& name, const Words& words, const std::string& text, const std::string& hint) {
  Words all{"train",     "%language.pt2",    "--data=@good.safetensors",
            "--ranks=2", "--microbatches=2", "--batch=8"};
  for (const std::string& word : words) {  // these take precedence
    const std::string option = word.substr(0, word.find('=') + 1);
    if (option.starts_with("--"))
      std::erase_if(all, [&](const auto& old) { return old.starts_with(option); });
    if (word.ends_with(".pt2") || word == "@folder") all[1] = word;
    if (!(word.ends_with(".pt2") || word == "@folder")) all.push_back(word);
  }
  return {"Train" + name, all, text, hint};
}

Mistake gpt(const std::string& name, const Words& words, const std::string& text, const std::string& hint) {
  Words all{"train"};
  all.insert(all.end(), words.begin(), words.end());
  return {"Gpt" + name, all, text, hint};
}

Mistake eval(const std::string& name, const Words& words, const std::string& text, const std::string& hint) {
  Words all{"eval", "%../../graph/archives/mlp.pt2", "--input=@x.safetensors", "--output=@y.safetensors"};
  for (const std::string& word : words) {
    const std::string option = word.substr(0, word.find('=') + 1);
    if (option.starts_with("--"))
      std::erase_if(all, [&](const auto& old) { return old.starts_with(option); });
    if (word.ends_with(".pt2") || word == "@folder") all[1] = word;
    if (!(word.ends_with(".pt2") || word == "@folder")) all.push_back(word);
  }
  return {"Eval" + name, all, text, hint};
}

const std::vector<Mistake>& mistakes() {
  static const std::vector<Mistake> all{
      // Files.
      train("MissingModel", {"%langauge.pt2"}, "there is no file", "did you mean "),
      train("FolderAsModel", {"@folder"}, "is a directory", "folder/model.pt2?"),
      train("TextFileAsModel", {"@notes.pt2"}, "notes.pt2", "torch.export.save"),
      gpt("MissingData", {"%language.pt2"}, "an exported model needs --data", "--data FILE.safetensors"),
      train("MissingData", {"--data=@god.safetensors"}, "god.safetensors", "did you mean "),
      train("CommaAfterData", {"--data=@good.safetensors,"}, "has an empty entry", "none at the end"),
      train("FolderAsData", {"--data=@folder"}, "is a directory", ".safetensors"),
      train("PatternWithoutFiles", {"--data=@nothing*.safetensors"}, "no file matches", "pattern"),
      train("DifferentFiles", {"--data=@good.safetensors,@no_target.safetensors"},
            "no_target.safetensors' has no tensor 'target'", "same tensors in every file"),
      train("BatchLargerThanData", {"--batch=24"}, "a batch of 24 is larger than the data", "--no-shuffle"),
      train("StepsAndEpochs", {"--epochs=2", "--steps=2"}, "--epochs and --steps", "one of the two"),
      train("NegativeEpochs", {"--epochs=-1"}, "--epochs must be at least 0", "--steps"),
      train("TooManyEpochs", {"--epochs=9000000000000000000"}, "9000000000000000000 epochs",
            "fewer --epochs"),
      train("TooManyEpochsInFileOrder", {"--epochs=9000000000000000000", "--no-shuffle"},
            "more steps than can be counted", "fewer --epochs"),
      train("ValidationDataAlone", {"--validation-data=@good.safetensors"}, "needs validations",
            "--eval-every"),
      train("LossIsNoScalar", {"--data=@no_target.safetensors", "--loss-output=logits"}, "is not a scalar",
            "'target'"),
      train("TextFileAsData", {"--data=@notes.txt"}, "notes.txt", "safetensors.torch.save_file"),
      train("MissingTarget", {"--data=@no_target.safetensors"}, "no tensor 'target'", "the labels 'target'"),
      train("MisnamedInput", {"--data=@misnamed.safetensors"}, "no tensor 'tokens'; it has",
            "tokens, weight, target"),
      train("ScalarInput", {"--data=@one_weight.safetensors"}, "'weight'", "first dim"),
      train("DifferentRowCounts", {"--data=@few_weights.safetensors"}, "'weight' has 3 examples",
            "same number"),
      train("RowsOfOtherFiles", {"--data=@more_inputs.safetensors,@more_targets.safetensors"}, "rows in '",
            "in each file"),
      train("EmptyData", {"--data=@empty.safetensors"}, "no examples", "at least one"),
      train("FloatTokens", {"--data=@float_tokens.safetensors"}, "'tokens' is float32, expected int64",
            "torch.int64"),
      train("DoubleInput", {"--data=@double_weight.safetensors"}, "'weight' is float64", "torch.float32"),
      train("SequenceLength", {"--data=@short_tokens.safetensors"}, "dim 1 of 'tokens' is 5",
            "takes int64[n, 6]"),
      train("FeatureCount", {"%mlp.pt2", "--data=@wide.safetensors", "--loss=mse"},
            "dim 1 of 'input' is 7, the model expects 6", "'input' is float32[20, 7] in "),
      train("DimCount", {"%mlp.pt2", "--data=@images.safetensors", "--loss=mse"},
            "'input' has 4 dims, the model expects 2", "takes float32[n, 6]"),
      train("ChannelsLast",
            {"%../../graph/archives/convnet.pt2", "--data=@images.safetensors", "--microbatches=4"},
            "dim 1 of 'x' is 8, the model expects 2",
            "store it in that shape with tensor.permute(0, 3, 1, 2)"),
      train("BatchNormOfOneRow",
            {"%norm.pt2", "--data=@mlp.safetensors", "--loss=mse", "--batch=8", "--microbatches=8"},
            "the batch norm '1' needs more than one value per channel", "fewer microbatches"),
      train("TokenOutOfRange", {"--data=@large_token.safetensors"}, "embedding 'token' has 17 rows",
            "larger embedding"),
      train("ClassOutOfRange", {"--data=@class_17.safetensors"}, "17 classes (0 to 16)",
            "number the classes from 0"),
      train("NegativeClass", {"--data=@class_negative.safetensors"}, "'target' contains class -", "-100"),
      train("FloatTarget", {"--data=@float_target.safetensors"}, "class indices", "--loss mse"),
      train("FlatTarget", {"--data=@flat_target.safetensors"}, "'target' is int64[4]", "[4, 6]"),
      train("FlatRegression", {"%mlp.pt2", "--data=@mlp_flat.safetensors", "--loss=mse"},
            "'target' is float32[4]", "shape of the output"),
      train("RegressionWithoutLoss", {"%mlp.pt2", "--data=@mlp.safetensors"},
            "but --loss cross_entropy takes probabilities", "--loss mse"),
      train("NegativeProbability", {"%mlp.pt2", "--data=@mlp.safetensors", "--loss=bce"},
            "but --loss bce takes probabilities", "--loss mse"),
      train("ProbabilitiesWithoutSum", {"%mlp.pt2", "--data=@sum_of_2.safetensors"}, "whose sum is 2",
            "--loss bce"),
      train("ProbabilityIsNan", {"%mlp.pt2", "--data=@nan.safetensors"}, "contains nan", "from 0 to 1"),
      train("ClassesForValidation",
            {"%mlp.pt2", "--data=@soft.safetensors", "--eval-every=1",
             "--validation-data=@classes.safetensors"},
            "'target' is int64[20] in '", "for training and validation"),
      train("ProbabilitiesForValidation",
            {"%mlp.pt2", "--data=@classes.safetensors", "--eval-every=1",
             "--validation-data=@soft.safetensors"},
            "'target' is float32[20, 3] in '", "for training and validation"),
      train("LossOutput", {"--loss-output=probabilities"}, "no output 'probabilities'", "output.logits"),
      train("BelowExportedRange", {"--batch=8", "--microbatches=8"}, "exported for 2 to 64", "in that range"),
      train("FixedBatch", {"%fixed.pt2", "--microbatches=4"}, "fixed batch of 4", "exactly 4"),
      // Counts.
      train("UnevenBatch", {"--batch=9", "--dp=2", "--ranks=2"}, "batch of 9", "multiple of 2"),
      train("TooManyMicrobatches", {"--microbatches=16"}, "16 microbatches", "fewer microbatches"),
      train("TooManyRanks", {"--ranks=400", "--microbatches=4"}, "400 stages", "at most"),
      train("StagesOverRanks", {"--stages=3"}, "3 stages", "--stages a multiple of 2"),
      train("StagesAndStagesPerRank", {"--stages=4", "--stages-per-rank=1"}, "--stages 4", "one of the two"),
      train("RanksOverReplicas", {"--ranks=3", "--dp=2"}, "3 ranks", "multiple of 2"),
      train("RanksAndStages", {"--ranks=4", "--pp=1"}, "--ranks 4", "make it 1"),
      train("ZeroRanks", {"--ranks=0"}, "--ranks", "use at least 1"),
      train("ZeroSteps", {"--steps=0"}, "--steps must be at least 1, not 0", "1 or more"),
      train("LearningRate", {"--lr=-1"}, "--lr must be a non-negative number", "for example 0.001"),
      train("Momentum", {"--momentum=-1"}, "--momentum must be a non-negative number", "for example 0.001"),
      train("RateOption", {"--lr-power=2"}, "--lr-power does not apply to --lr-schedule constant",
            "polynomial"),
      train("LossScale", {"--precision=fp16", "--loss-scale=1000"}, "--loss-scale must be a power of two",
            "65536"),
      train("LossScaleOfBfloat16", {"--precision=bf16", "--loss-scale=1024"},
            "--loss-scale does not apply to --precision bf16", "choose --precision fp16"),
      train("MasterWeights", {"--param-dtype=bf16", "--precision=fp16"},
            "--param-dtype bf16 does not apply to --precision fp16", "--precision bf16"),
      train("RatePeriod", {"--lr-schedule=step"}, "needs --lr-period", "--lr-period 1000"),
      train("FinalRate", {"--lr-schedule=linear", "--lr-final=2"}, "--lr-final must be", "fraction"),
      train("Freeze", {"--freeze=layer.0"}, "freeze: no parameter or module of the model matches 'layer.0'",
            "did you mean layers.0?"),
      train("Recompute", {"--recompute=layers.*,layer.0"},
            "recompute_modules: no module of the model that can be recomputed matches 'layer.0'",
            "did you mean layers.0?"),
      train("OptionOfSgd", {"--nesterov"}, "--nesterov does not apply to --optimizer adamw", "sgd"),
      train("RateScale", {"--lr-scale=0=x"}, "--lr-scale", "PATTERN=FACTOR"),
      train("Warmup", {"--warmup=-1"}, "--warmup must be at least 0, not -1", "0 or more"),
      train("NegativeEvalEvery", {"--eval-every=-1"}, "--eval-every must be at least 0",
            "0 for no validation"),
      train("NegativeEvalBatches", {"--eval-batches=-1"}, "--eval-batches must be at least 0",
            "0 for all rows"),
      train("NegativeCheckpointEvery", {"--checkpoint-every=-1"}, "--checkpoint-every must be at least 0",
            "only at the end"),
      train("NegativeGradClip", {"--grad-clip=-1"}, "--grad-clip must be at least 0", "0 for no clipping"),
      train("Restarts", {"--max-restarts=-1"}, "--max-restarts", "0 for no restarts"),
      train("Timeout", {"--timeout=0"}, "--timeout", "300"),
      train("ValidationShare", {"--validation=2"}, "--validation", "0.1"),
      train("NoValidationRows", {"--eval-every=2", "--validation=0"}, "--eval-every", "--validation 0.1"),
      // Stages and schedules.
      train("SplitPath", {"--split=layer.1=beginning"}, "'layer.1'", "did you mean layers.1?"),
      train("SplitPointWithoutSide", {"--split=layers.1"}, "'layers.1'", "layers.2=beginning"),
      train("SplitCount", {"--split=layers.1=beginning,layers.2=beginning"}, "3 stages", "1 split point"),
      train("Schedule", {"--schedule=1F2B"}, "'1F2B'", "1F1B"),
      train("ForwardOnly", {"--schedule=ForwardOnly"}, "no backward", "1F1B"),
      train("ScheduleCounts", {"--schedule=DualPipeV"}, "DualPipeV", "use 4 microbatches"),
      train("PlanPath", {"--tp=2", "--pp=1", "--ranks=2", "--tp-plan=layer.*.up=colwise"}, "layer.*.up",
            "layers"),
      train("PlanStyle", {"--tp=2", "--pp=1", "--ranks=2", "--tp-plan=layers.*.up=columns"}, "columns",
            "colwise"),
      train("PlanForTiedWeight", {"--tp=2", "--pp=2", "--ranks=4", "--tp-plan=token=rowwise"},
            "several stages", "leave its module out"),
      train("Backend", {"--backend=glue"}, "'glue'", "gloo"),
      train("Cuda", {"--device=cuda"}, "--device cuda: ", "--device cpu"),
      train("Device", {"--device=tpu"}, "tpu", "cpu"),
      // Output.
      train("CheckpointIsFile", {"--checkpoint=@notes.txt"}, "notes.txt", "another directory"),
      train("CheckpointInFile", {"--checkpoint=@notes.txt/c"}, "notes.txt", "another directory"),
      train("ExistingCheckpoints", {"--checkpoint=@folder/earlier"}, "earlier run", "resume"),
      train("ResumeWithoutDirectory", {"--resume"}, "--resume", "--checkpoint DIR"),
      train("ResumeWithoutCheckpoint", {"--resume", "--checkpoint=@folder/none"}, "no complete checkpoint",
            "directory"),
      train("ResumeOtherModel", {"--resume", "--checkpoint=@folder/other_model"},
            "not in the model or optimizer (other.weight)", "resume partly"),
      train("ResumePartially", {"--resume-partly"}, "--resume-partly", "both"),
      train("CheckpointEvery", {"--checkpoint-every=2"}, "--checkpoint-every", "--checkpoint DIR"),
      train("LogIsFolder", {"--log-json=@folder"}, "--log-json", "a file in it"),
      train("LogIsData", {"--log-json=@good.safetensors"}, "overwrite", "another file"),
      train("TimelineInFile", {"--timeline=@notes.txt/t.html"}, "--timeline", "another file"),
      // Options.
      train("DuplicateOption", {"--steps=2", "--accumulate=1", "--accumulate", "2"},
            "--accumulate was given 2 times", "once"),
      train("MisspelledOption", {"--microbatch=2"}, "'--microbatch'", "did you mean --microbatches?"),
      train("UnknownOption", {"--batch-size=8"}, "'--batch-size'", "did you mean --batch?"),
      train("NotANumber", {"--steps=many"}, "--steps must be a whole number, not 'many'", "--steps 4"),
      train("NotAnInteger", {"--accumulate=1.5"}, "whole number, not '1.5'", "--accumulate 4"),
      train("InvalidChoice", {"--optimizer=adanw"}, "'adanw'", "did you mean adamw?"),
      train("TwoModels", {"--steps=2", "more"}, "'more'", "--help"),
      train("OptionOfGpt", {"--layers=2"}, "--layers is for the built-in GPT", "leave it out"),
      train("ConfigKey", {"--config=@key.toml"}, "'microbatchs'", "did you mean microbatches?"),
      train("ConfigSyntax", {"--config=@syntax.toml"}, "line 1", "KEY = VALUE"),
      train("ConfigType", {"--config=@type.toml"}, "steps must be a whole number", "steps = 4"),
      train("ConfigOfGpt", {"--config=@gpt.toml"}, "--layers is for the built-in GPT", "leave it out"),
      train("MissingConfig", {"--config=@kky.toml"}, "kky.toml", "key.toml?"),
      train("FolderAsConfig", {"--config=@folder"}, "is a directory", "name a file"),
      // The built-in GPT.
      gpt("Heads", {"--heads=3"}, "3 heads", "multiple"),
      gpt("Ranks", {"--ranks=400"}, "at most 6 stages, not 400", "more layers"),
      gpt("TensorRanks", {"--tp=3"}, "4 heads", "divides"),
      gpt("ShortText", {"--data=@short.txt"}, "too short", "longer"),
      gpt("TooManyEpochs", {"--epochs=9000000000000000000"}, "9000000000000000000 epochs", "fewer --epochs"),
      gpt("EmptyText", {"--data=@empty.txt"}, "empty", "text"),
      gpt("TensorsAsText", {"--data=@good.safetensors"}, "trained on text", "MODEL.pt2"),
      gpt("NoText", {"--data=@nots.txt"}, "nots.txt", "notes.txt?"),
      gpt("ClassWeights", {"--class-weights=1,2"}, "there are 2 class_weights, but the output has",
          "one weight per class"),
      gpt("SplitPath", {"--split=blocks.9=beginning"}, "cannot be split at the beginning of 'blocks.9'",
          "blocks."),
      gpt("LossMean", {"--loss-mean=rows"}, "--loss-mean is for an exported model", "MODEL.pt2"),
      train("LossMeanOfTarget", {"--loss-mean=labels"}, "--loss-mean does not apply", "--loss-output"),
      gpt("OptionOfModels", {"--balance=time"}, "--balance is for an exported model", "MODEL.pt2"),
      gpt("LossOfModels", {"--loss=mse"}, "--loss mse does not apply to the built-in GPT: its target is",
          "MODEL.pt2"),
      gpt("LossOfModelsWithSmoothing", {"--loss=l1", "--label-smoothing=0.1"}, "--loss l1", "MODEL.pt2"),
      // Evaluation.
      eval("MissingModel", {"%../../graph/archives/mlpp.pt2"}, "there is no file", "mlp.pt2?"),
      eval("FolderAsModel", {"@folder"}, "is a directory", "folder/model.pt2?"),
      eval("MissingInput", {"--input=@z.safetensors"}, "z.safetensors", "x.safetensors?"),
      eval("FolderAsInput", {"--input=@folder"}, "is a directory", ".safetensors"),
      eval("TextFileAsInput", {"--input=@notes.txt"}, "notes.txt", "save_file"),
      eval("MisnamedInput", {"--input=@good.safetensors"}, "input x", "after the model's inputs"),
      eval("TooManyMicrobatches", {"--microbatches=5"}, "4 examples", "at most 4"),
      eval("TooManyRanks", {"--ranks=400", "--microbatches=2"}, "400 stages", "at most"),
      eval("StagesOverRanks", {"--ranks=2", "--stages=3"}, "3 stages", "multiple"),
      eval("Replicas", {"--dp=5"}, "4 examples", "--dp 4"),
      eval("TensorRanks", {"%../../graph/archives/lstm.pt2", "--input=@lstm.safetensors", "--tp=2"},
           "2 tensor-parallel ranks", "--tp 1"),
      eval("Schedule", {"--schedule=Gpip"}, "'Gpip'", "GPipe"),
      eval("SplitPath", {"--split=layer.1=beginning"}, "'layer.1'", "did you mean"),
      eval("SplitAndStages", {"--split=layers.1=beginning", "--stages=2"}, "exclusive", "one of them"),
      eval("Backend", {"--backend=glue"}, "'glue'", "gloo"),
      eval("Cuda", {"--device=cuda"}, "--device cuda: ", "--device cpu"),
      eval("Device", {"--device=tpu"}, "tpu", "cpu"),
      eval("OutputFolder", {"--output=@nowhere/y.safetensors"}, "no directory", "--output"),
      eval("OutputIsFolder", {"--output=@folder"}, "is a directory", "a file in it"),
      eval("OutputIsInput", {"--output=@x.safetensors"}, "overwrite", "another file"),
      eval("MisspelledOption", {"--inputs=x"}, "'--inputs'", "did you mean --input?"),
  };
  return all;
}

class ToolTrainInvalidInput : public testing::TestWithParam<std::size_t> {
 protected:
  // Most of a case is the start of the program: runs two at a time.
  static void SetUpTestSuite() {
    dir_ = std::make_unique<TempDir>();
    write_files(*dir_);
    outcomes_.resize(mistakes().size());
    std::atomic<std::size_t> next = 0;
    std::vector<std::jthread> threads;
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([&] {
        for (std::size_t mine = next++; mine < outcomes_.size(); mine = next++) {
          Words words = mistakes()[mine].words;
          for (std::string& word : words) {
            for (std::size_t at; (at = word.find('@')) != std::string::npos;) word.replace(at, 1, *dir_ / "");
            if (word.starts_with('%')) word.replace(0, 1, kArchives);
          }
          words.insert(words.begin(), PENSTOCK_TOOL);
          // A rank that starts nevertheless would end immediately and be reported.
          outcomes_[mine] = run_program(words, {"PENSTOCK_FAULT=exit rank=0 at=start"});
        }
      });
  }
  static void TearDownTestSuite() { dir_.reset(); }

  static std::unique_ptr<TempDir> dir_;
  static std::vector<Outcome> outcomes_;
};
std::unique_ptr<TempDir> ToolTrainInvalidInput::dir_;
std::vector<Outcome> ToolTrainInvalidInput::outcomes_;

TEST_P(ToolTrainInvalidInput, IsReportedOnceWithHint) {
  const Mistake& mistake = mistakes()[GetParam()];
  const Outcome& outcome = outcomes_[GetParam()];
  SCOPED_TRACE(testing::PrintToString(mistake.words) + "\n" + outcome.err);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "") << "ranks were started";
  EXPECT_THAT(outcome.err, Not(HasSubstr("failed first")));
  const auto hint = outcome.err.find("\nhint: ");
  ASSERT_NE(hint, std::string::npos);
  EXPECT_THAT(outcome.err.substr(0, hint),
              AllOf(testing::StartsWith("penstock: error: "), HasSubstr(mistake.text)));
  EXPECT_THAT(outcome.err.substr(hint), HasSubstr(mistake.hint));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 2);
}

std::vector<std::size_t> numbers() {
  std::vector<std::size_t> all(mistakes().size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ToolTrainInvalidInput, testing::ValuesIn(numbers()),
                         [](const auto& one) { return mistakes()[one.param].name; });

// Opening a FIFO without a writer would block.
TEST(ToolInputFiles, OfTrainingMustBeRegularFiles) {
  const TempDir dir;
  ASSERT_EQ(mkfifo((dir / "fifo.txt").c_str(), 0600), 0);
  for (const char* const option : {"--config=", "--data="}) {
    const Outcome outcome = penstock({"train", "--steps=1", option + (dir / "fifo.txt")});
    EXPECT_EQ(outcome.code, 2) << option;
    EXPECT_THAT(outcome.err, HasSubstr("fifo.txt': it is a FIFO, not a regular file")) << option;
    EXPECT_EQ(outcome.out, "") << option;
  }
}

}  // namespace
}  // namespace penstock::test
