// Models that C++ loads and trains, compared bitwise with the same training in Python on this machine.
#include "support/same_bits.h"
#include "trained_models.h"

#include <penstock/load_module.h>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <sstream>

namespace penstock::graph {
namespace {

using test::same_bits;
using test::TrainedModel;

const std::vector<std::string> kModels = {"resnet", "bert_tied", "bert_untied"};

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

// The settings of make_trained_models.py.
const std::map<std::string, MakeOptimizer> kOptimizers = {
    {"sgd",
     [](std::vector<at::Tensor> parameters) {
       return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                                  torch::optim::SGDOptions(0.05).momentum(0.9));
     }},
    {"adamw", [](std::vector<at::Tensor> parameters) {
       return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                    torch::optim::AdamWOptions(0.01).weight_decay(0.1));
     }}};

at::Tensor logits_of(ExportedModule& model, const TrainedModel& python, std::int64_t step) {
  const std::vector<at::Tensor> x = python.inputs(step);
  return x.size() == 1 ? model(x[0]) : model->forward_named(x[0], x[1]).at("output.logits").flatten(0, 1);
}

std::vector<at::Tensor> train(ExportedModule& model, const TrainedModel& python,
                              const std::string& optimizer_name) {
  const auto optimizer = kOptimizers.at(optimizer_name)(model->parameters());
  std::vector<at::Tensor> losses;
  for (std::int64_t step = 0; step < python.steps(); ++step) {
    optimizer->zero_grad();
    const at::Tensor loss =
        torch::nn::functional::cross_entropy(logits_of(model, python, step), python.target(step));
    loss.backward();
    optimizer->step();
    losses.push_back(loss.detach());
  }
  return losses;
}

void expect_state(const ExportedModule& model, const TrainedModel& python, const std::string& prefix) {
  const auto state = model->state_dict();
  EXPECT_EQ(state.keys(), python.names.at("state"));
  for (const auto& item : state)
    EXPECT_TRUE(same_bits(item.value(), python.at(prefix + item.key()))) << prefix << item.key();
}

TEST(GraphExportedTraining, IsBitwiseEqualToPython) {
  SKIP_WITHOUT_PYTHON();
  at::set_num_threads(1);
  for (const std::string& name : kModels) {
    const TrainedModel python(name);
    for (const auto& [optimizer, make] : kOptimizers) {
      SCOPED_TRACE(name + " with " + optimizer);
      ExportedModule model = load_module(python.file);
      const std::vector<at::Tensor> losses = train(model, python, optimizer);
      EXPECT_TRUE(same_bits(at::stack(losses), python.at(optimizer + ".loss")))
          << at::stack(losses) << python.at(optimizer + ".loss");
      EXPECT_FALSE(same_bits(losses.front(), losses.back()));
      expect_state(model, python, optimizer + ".state.");
    }
  }
}

TEST(GraphExportedTraining, NamesMatchPython) {
  SKIP_WITHOUT_PYTHON();
  for (const std::string& name : kModels) {
    SCOPED_TRACE(name);
    const TrainedModel python(name);
    const ExportedModule model = load_module(python.file);
    EXPECT_EQ(model->named_parameters().keys(), python.names.at("parameter"));
    EXPECT_EQ(model->named_buffers().keys(), python.names.at("buffer"));
    EXPECT_EQ(model->state_dict().keys(), python.names.at("state"));
  }
}

TEST(GraphExportedTraining, EvaluationModeMatchesPython) {
  SKIP_WITHOUT_PYTHON();
  at::set_num_threads(1);
  for (const std::string name : {"resnet", "bert_dropout"}) {
    SCOPED_TRACE(name);
    const TrainedModel python(name);
    ExportedModule model = load_module(python.file);
    const std::vector<at::Tensor> x = python.inputs(0);
    const Args args(x.begin(), x.end());
    const ExportedModule untouched = load_module(python.file);
    model->eval();
    for (const auto& [path, output] : model->forward_named(args))
      EXPECT_TRUE(same_bits(output, python.at("eval." + path))) << path;
    for (const auto& item : model->state_dict())
      EXPECT_TRUE(same_bits(item.value(), untouched->state_dict()[item.key()])) << item.key();
    model->train();
    torch::manual_seed(7);  // the dropout masks of Python
    for (const auto& [path, output] : model->forward_named(args)) {
      EXPECT_TRUE(same_bits(output, python.at("random." + path))) << path;
      EXPECT_FALSE(same_bits(output, python.at("eval." + path))) << path;
    }
  }
}

TEST(GraphExportedTraining, SubmodulesHaveTheirOwnMode) {
  SKIP_WITHOUT_PYTHON();
  at::set_num_threads(1);
  const TrainedModel python("resnet");
  ExportedModule model = load_module(python.file);
  model->named_modules()["layers.0.norm1"]->eval();
  EXPECT_TRUE(same_bits(model(python.inputs(0)[0]), python.at("frozen.output")));
  expect_state(model, python, "frozen.state.");
  EXPECT_FALSE(same_bits(python.at("frozen.output"), python.at("random.output")));
}

TEST(GraphExportedTraining, SavedStateContinuesTraining) {
  SKIP_WITHOUT_PYTHON();
  at::set_num_threads(1);
  for (const std::string& name : kModels) {
    SCOPED_TRACE(name);
    const TrainedModel python(name);
    ExportedModule model = load_module(python.file), restored = load_module(python.file);
    train(model, python, "sgd");
    std::stringstream file;
    torch::save(model, file);
    torch::load(restored, file);
    expect_state(restored, python, "sgd.state.");
    const std::vector<at::Tensor> losses = train(model, python, "adamw");
    EXPECT_TRUE(same_bits(at::stack(train(restored, python, "adamw")), at::stack(losses)));
  }
}

TEST(GraphExportedTraining, CloneIsIndependent) {
  SKIP_WITHOUT_PYTHON();
  at::set_num_threads(1);
  for (const std::string& name : kModels) {
    SCOPED_TRACE(name);
    const TrainedModel python(name);
    ExportedModule model = load_module(python.file);
    model->named_parameters()[0].value().set_requires_grad(false);
    ExportedModule copy = std::dynamic_pointer_cast<ExportedModuleImpl>(model->clone());
    EXPECT_FALSE(copy->named_parameters()[0].value().requires_grad());
    copy->named_parameters()[0].value().set_requires_grad(true);
    train(copy, python, "sgd");
    expect_state(copy, python, "sgd.state.");
    const ExportedModule untouched = load_module(python.file);
    for (const auto& item : model->state_dict())
      EXPECT_TRUE(same_bits(item.value(), untouched->state_dict()[item.key()])) << item.key();
  }
}

}  // namespace
}  // namespace penstock::graph
