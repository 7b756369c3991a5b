// Captured C++ models compared with eager: outputs, gradients and buffers, bitwise, unsplit and in stages;
// and `forward` functions that must be rejected.
#include "graph/run/interpreter.h"
#include "support/error_message.h"
#include "support/models/capture_models.h"
#include "support/same_bits.h"
#include "support/stage_runner.h"
#include "support/tensor_file.h"
#include "unsplit_model.h"

#include <penstock/base/error.h>
#include <penstock/graph/capture.h>
#include <penstock/graph/graph_text.h>
#include <penstock/graph/split.h>

#include <c10/core/Allocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace penstock::graph {
namespace {

using c10::IValue;
using test::same_bits;
using testing::HasSubstr;

//! The results of a run: outputs, gradients by name, buffers by name.
struct Outcome {
  std::vector<IValue> outputs;
  std::map<std::string, at::Tensor> gradients, buffers;
};

std::vector<at::Tensor> seeds_for(const std::vector<IValue>& outputs) {
  std::vector<at::Tensor> seeds;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  for (const IValue& output : outputs) {
    const bool root = output.isTensor() && output.toTensor().requires_grad();
    seeds.push_back(root ? torch::randn(output.toTensor().sizes(), generator) : at::Tensor());
  }
  return seeds;
}

void backward(const std::vector<IValue>& outputs) {
  std::vector<at::Tensor> roots, grads;
  const auto seeds = seeds_for(outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!seeds[i].defined()) continue;
    roots.push_back(outputs[i].toTensor());
    grads.push_back(seeds[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, grads);
}

void expect_same(const Outcome& got, const Outcome& expected, bool exact) {
  ASSERT_EQ(got.outputs.size(), expected.outputs.size());
  for (std::size_t i = 0; i < got.outputs.size(); ++i) {
    if (!got.outputs[i].isTensor()) continue;
    EXPECT_TRUE(same_bits(got.outputs[i].toTensor(), expected.outputs[i].toTensor())) << "output " << i;
  }
  ASSERT_EQ(got.gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    ASSERT_TRUE(got.gradients.contains(name)) << name;
    EXPECT_TRUE(exact ? same_bits(got.gradients.at(name), gradient)
                      : at::allclose(got.gradients.at(name), gradient, 1e-5, 1e-6))
        << name;
  }
  for (const auto& [name, buffer] : got.buffers)
    EXPECT_TRUE(same_bits(buffer, expected.buffers.at(name))) << name;
}

template <class Module, class Forward>
void expect_as_eager(const std::string& name, Module& module, const Forward& forward, const value::Args& args,
                     const value::Kwargs& kwargs = {}) {
  SCOPED_TRACE(name);
  at::set_num_threads(1);
  const ModelTensors model = test::tensors_of_module(module);
  std::map<std::string, at::Tensor> start;
  for (const auto& list : {model.parameters, model.buffers}) {
    for (const auto& [tensor_name, tensor] : list) start[tensor_name] = tensor.detach().clone();
  }
  torch::manual_seed(3);
  const Captured captured = capture(forward, model, args, kwargs);
  // The capture changed neither the model nor the random state.
  const at::Tensor drawn = torch::rand({4});
  torch::manual_seed(3);
  EXPECT_TRUE(same_bits(drawn, torch::rand({4})));
  for (const auto& [buffer_name, buffer] : model.buffers)
    EXPECT_TRUE(same_bits(buffer, start.at(buffer_name)));

  Outcome eager;
  torch::manual_seed(3);
  eager.outputs = value::flatten(forward(args, kwargs)).leaves;
  backward(eager.outputs);
  const auto first_name = [&](const at::Tensor& tensor) {
    for (const Slot& slot : captured.graph.slots) {
      const auto index = static_cast<std::size_t>(&slot - captured.graph.slots.data());
      if (captured.tensors[index].is_same(tensor)) return slot.names[0];
    }
    return std::string();
  };
  for (const auto& [parameter, tensor] : model.parameters) {
    if (tensor.grad().defined()) eager.gradients[first_name(tensor)] = tensor.grad().clone();
  }
  for (const auto& [buffer, tensor] : model.buffers) eager.buffers[buffer] = tensor.clone();

  // Constants of the graph do not belong to the model.
  for (std::size_t i = 0; i < captured.graph.slots.size(); ++i) {
    start.try_emplace(captured.graph.slots[i].names[0], captured.tensors[i].detach().clone());
  }
  std::vector<IValue> leaves = flatten_inputs(captured.graph, args, kwargs);
  const auto run = [&](const SplitPositions& positions) {
    const SplitGraph split = split_graph(captured.graph, positions);
    test::StageRunner runner(split, start);
    torch::manual_seed(3);
    Outcome outcome;
    outcome.outputs = runner.forward(leaves);
    runner.backward(seeds_for(outcome.outputs));
    outcome.gradients = runner.gradients();
    for (const GraphModule& stage : runner.modules) {
      for (const auto& [buffer, tensor] : stage.named_buffers()) outcome.buffers[buffer] = tensor;
    }
    return outcome;
  };
  expect_same(run({}), eager, true);
  EXPECT_EQ(to_string(parse_graph(to_string(captured.graph))), to_string(captured.graph));
  const SplitPositions legal = legal_split_positions(captured.graph);
  std::mt19937 random(11);
  for (std::size_t count = 1; count <= std::min<std::size_t>(8, legal.size()); ++count) {
    SplitPositions positions;
    std::sample(legal.begin(), legal.end(), std::back_inserter(positions), count, random);
    SCOPED_TRACE("split before nodes " + testing::PrintToString(positions));
    expect_same(run(positions), eager, false);
    test::expect_partition(captured.graph, split_graph(captured.graph, positions));
  }
}

TEST(GraphCapture, IsBitwiseEqualToEager) {
  torch::manual_seed(1);
  test::Mlp mlp;
  expect_as_eager("mlp", *mlp, test::forward_of(mlp), {torch::randn({4, 6})});
  test::Gpt gpt;
  expect_as_eager("gpt", *gpt, test::forward_of(gpt), {torch::randint(0, 13, {3, 6})});
  test::ConvNet conv;
  expect_as_eager("convnet", *conv, test::forward_of(conv), {torch::randn({2, 2, 8, 8})});
  test::UNet unet;
  expect_as_eager("unet", *unet, test::forward_of(unet), {torch::randn({2, 1, 8, 8})});
  test::EveryFeature every_feature;
  const ForwardFunction forward = [&](const value::Args& args, const value::Kwargs& kwargs) {
    return every_feature->forward(args, kwargs);
  };
  expect_as_eager("odds", *every_feature, forward, {torch::randn({4, 4})}, {{"bias", torch::randn({4})}});
}

TEST(GraphCapture, MatchesEagerForRecurrentAndTransformerModules) {
  torch::manual_seed(2);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(3, 4).num_layers(2).batch_first(true).dropout(0.1));
  const ForwardFunction run_lstm = [&](const value::Args& args, const value::Kwargs&) {
    const auto [y, state] = lstm(args.at(0).toTensor());
    return IValue(std::make_tuple(y, std::get<0>(state), std::get<1>(state)));
  };
  expect_as_eager("lstm", *lstm, run_lstm, {torch::randn({2, 5, 3})});
  torch::nn::GRU gru(torch::nn::GRUOptions(3, 4));
  const ForwardFunction run_gru = [&](const value::Args& args, const value::Kwargs&) {
    return IValue(std::get<0>(gru(args.at(0).toTensor())));
  };
  expect_as_eager("gru", *gru, run_gru, {torch::randn({5, 2, 3})});
  torch::nn::TransformerEncoder encoder(torch::nn::TransformerEncoderOptions(
      torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16), 2));
  expect_as_eager("encoder", *encoder, test::forward_of(encoder), {torch::randn({5, 2, 8})});
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(8, 2));
  const ForwardFunction attend = [&](const value::Args& args, const value::Kwargs&) {
    const auto x = args.at(0).toTensor();
    return IValue(attention(x, x, x));
  };
  expect_as_eager("attention", *attention, attend, {torch::randn({5, 2, 8})});
}

TEST(GraphCapture, RecordsModulesSplitMarksAndTiedWeights) {
  test::Gpt gpt;
  const Captured captured =
      capture(test::forward_of(gpt), test::tensors_of_module(*gpt), {torch::randint(0, 13, {2, 6})});
  const Graph& graph = captured.graph;
  EXPECT_EQ(split_at_marks(graph).size(), 2U);
  EXPECT_THAT(module_paths(graph),
              testing::IsSupersetOf({"token", "position", "blocks.0", "blocks.2", "norm"}));
  const SplitPositions beginning = split_at_modules(graph, {{"blocks.1", SplitPoint::Beginning}});
  const SplitGraph split = split_graph(graph, beginning);
  ASSERT_EQ(split.shared.size(), 1U);
  EXPECT_EQ(split.shared[0].names[0], "token.weight");
  EXPECT_EQ(split.stages[1].sources.size(), 1U);
  pipe_split();  // no effect outside a capture
}

TEST(GraphCapture, DistinguishesCallsOfSameModule) {
  torch::nn::Linear block(4, 4);
  const ForwardFunction forward = [&](const value::Args& args, const value::Kwargs&) {
    auto x = args[0].toTensor();
    for (int i = 0; i < 3; ++i) {
      const ModuleScope outer("tower");
      const ModuleScope scope("block");
      x = torch::relu(block(x));
    }
    return IValue(x);
  };
  const Graph graph = capture(forward, test::tensors_of_module(*block), {torch::randn({2, 4})}).graph;
  const auto at = [&](const std::string& module, SplitPoint point) {
    return split_at_modules(graph, {{module, point}});
  };
  // Three operators per call: t, addmm, relu.
  EXPECT_EQ(at("tower.block", SplitPoint::Beginning), (SplitPositions{3, 6}));
  EXPECT_EQ(at("tower", SplitPoint::End), (SplitPositions{3, 6}));
  EXPECT_EQ(at("tower.block@2", SplitPoint::Beginning), SplitPositions{6});
  EXPECT_EQ(at("tower@0", SplitPoint::End), SplitPositions{3});
  EXPECT_THAT(to_string(graph), HasSubstr("@ tower@2.block@2"));
  EXPECT_EQ(split_graph(graph, {3, 6}).shared.size(), 2U);  // weight and bias, shared by all three
}

TEST(GraphCapture, HonorsEvalModeOfDropoutAndBatchNorm) {
  at::set_num_threads(1);
  torch::manual_seed(8);
  torch::nn::BatchNorm1d norm(3);
  torch::nn::InstanceNorm1d instance(torch::nn::InstanceNorm1dOptions(3).track_running_stats(true));
  bool training = true;
  const ForwardFunction forward = [&](const value::Args& args, const value::Kwargs&) {
    auto x = instance(norm(args[0].toTensor()));
    x = torch::scaled_dot_product_attention(x, x, x, {}, training ? 0.5 : 0.0);
    x = torch::alpha_dropout(torch::rrelu(x, 0.1, 0.9, training), 0.3, training);
    return IValue(torch::dropout(x, 0.4, training));
  };
  const auto x = torch::randn({4, 3, 5});
  for (const auto* module :
       {static_cast<torch::nn::Module*>(norm.get()), static_cast<torch::nn::Module*>(instance.get())})
    for (const auto& buffer : module->named_buffers())
      if (buffer.value().is_floating_point()) buffer.value().uniform_(0.5, 1.5);
  ModelTensors model;
  for (const auto& [name, module] :
       {std::pair<std::string, torch::nn::Module*>("norm.", norm.get()), {"instance.", instance.get()}}) {
    const ModelTensors part = test::tensors_of_module(*module);
    for (const auto& [key, tensor] : part.parameters) model.parameters.push_back({name + key, tensor});
    for (const auto& [key, tensor] : part.buffers) model.buffers.push_back({name + key, tensor});
  }
  const Captured captured = capture(forward, model, {x});
  GraphModule module(captured.graph, captured.tensors);
  module.train(false);
  const at::Tensor evaluated = module.forward({x}).toTensor();
  norm->eval(), instance->eval();
  training = false;
  EXPECT_TRUE(same_bits(evaluated, forward({x}, {}).toTensor()));
  EXPECT_EQ(norm->num_batches_tracked.item<int>(), 0);
}

TEST(GraphCapture, DrawsFreshRandomNumbersInEveryRun) {
  torch::nn::Dropout dropout(0.5);
  const Captured captured = capture(test::forward_of(dropout), {}, {torch::ones({64})});
  GraphModule module(captured.graph, captured.tensors);
  const auto once = module.forward({torch::ones({64})}), twice = module.forward({torch::ones({64})});
  EXPECT_FALSE(same_bits(once.toTensor(), twice.toTensor()));
}

TEST(GraphCapture, FreesIntermediatesLikeEager) {
  // 40 steps over 1 MB each: a graph that kept its values alive would hold 40 MB.
  const ForwardFunction chain = [](const value::Args& args, const value::Kwargs&) {
    auto x = args.at(0).toTensor();
    for (int i = 0; i < 40; ++i) x = x + 1;
    return IValue(x);
  };
  const Captured captured = capture(chain, {}, {torch::zeros({4})});
  const Interpreter interpreter(captured.graph);
  std::vector<void*> addresses;
  at::Tensor x = torch::zeros({1 << 18});
  const torch::NoGradGuard no_grad;
  const auto out = interpreter.run({x}, {});
  EXPECT_EQ(out[0].toTensor()[5].item<float>(), 40.0F);
  EXPECT_EQ(x.use_count(), 1U);
}

//! Counts the bytes that libtorch's CPU allocator allocates and frees.
class MemoryMeter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    now += bytes;
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t now = 0, peak = 0;
};

std::int64_t peak_memory(const std::function<void()>& work) {
  const auto meter = std::make_shared<MemoryMeter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  work();
  return meter->peak;
}

TEST(GraphCapture, UsesNoMoreMemoryThanEager) {
  at::set_num_threads(1);
  test::Gpt gpt(4, 64, 4, 101, 32);
  const auto tokens = torch::randint(0, 101, {4, 32});
  const Captured captured = capture(test::forward_of(gpt), test::tensors_of_module(*gpt), {tokens});
  GraphModule module(captured.graph, captured.tensors);
  for (const bool grad : {false, true}) {
    const c10::AutoGradMode mode(grad);
    const auto train = [&](const at::Tensor& output) {
      if (grad) output.sum().backward();
    };
    train(gpt->forward(tokens));  // gradients are allocated from now on
    const std::int64_t eager = peak_memory([&] { train(gpt->forward(tokens)); });
    const std::int64_t replay = peak_memory([&] { train(module.forward({tokens}).toTensor()); });
    EXPECT_GT(eager, 4 * 32 * 101 * 4);
    EXPECT_LE(replay, eager) << (grad ? "forward and backward" : "forward");
  }
}

std::string capture_error(const ForwardFunction& forward, const ModelTensors& model = {}) {
  return test::error_message<UsageError>([&] { capture(forward, model, {torch::ones({4})}); });
}

struct Twice : torch::autograd::Function<Twice> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0] * 3};
  }
};

TEST(GraphCapture, RejectsForwardsThatCannotBeCaptured) {
  EXPECT_THAT(capture_error([](const value::Args& args, const value::Kwargs&) {
                const ModuleScope scope("gate");
                const auto x = args[0].toTensor();
                return IValue(x.sum().item<float>() > 0 ? x : -x);
              }),
              testing::AllOf(HasSubstr("aten::item of module gate"), HasSubstr("torch::where")));
  EXPECT_THAT(capture_error([](const value::Args& args, const value::Kwargs&) {
                return IValue(args[0].toTensor().sum().is_nonzero() ? args[0] : IValue(1));
              }),
              HasSubstr("aten::is_nonzero"));
  const auto weight = torch::ones({4}, torch::requires_grad());
  const ModelTensors model{.parameters = {{"w", weight}}, .buffers = {}};
  const ForwardFunction data = [&](const value::Args& args, const value::Kwargs&) {
    const ModuleScope scope("scaled");
    return IValue((args[0].toTensor() * weight).data() * 2);
  };
  EXPECT_THAT(capture_error(data, model),
              testing::AllOf(HasSubstr("shares memory"), HasSubstr("aten::mul.Scalar of module scaled"),
                             HasSubstr("hint: use detach() instead of data()")));
  const ForwardFunction custom = [&](const value::Args& args, const value::Kwargs&) {
    const ModuleScope scope("twice");
    return IValue(Twice::apply(args[0].toTensor() * weight) + 1);
  };
  EXPECT_THAT(
      capture_error(custom, model),
      testing::AllOf(HasSubstr("custom autograd function"), HasSubstr("aten::add.Scalar of module twice"),
                     HasSubstr("hint: register it as an operator with an autograd kernel")));
  EXPECT_THAT(
      capture_error([&](const value::Args& args,
                        const value::Kwargs&) { return IValue(Twice::apply(args[0].toTensor() * weight)); },
                    model),
      HasSubstr("custom autograd function"));
  EXPECT_THAT(capture_error([&](const value::Args& args, const value::Kwargs&) {
                return IValue(args[0].toTensor() * weight);
              }),
              HasSubstr("register_parameter"));
  const auto other = torch::ones({4});
  const ForwardFunction replaced = [&](const value::Args& args, const value::Kwargs&) {
    const ModuleScope scope("swap");
    auto x = args[0].toTensor() + 1;
    x.set_(other);
    return IValue(x);
  };
  EXPECT_THAT(capture_error(replaced),
              testing::AllOf(HasSubstr("aten::set_"), HasSubstr("of module swap"), HasSubstr("copy_()")));
  // Without a module scope, the error names the preceding operator.
  const ForwardFunction unguarded = [&](const value::Args& args, const value::Kwargs&) {
    return IValue((args[0].toTensor() * weight).sum().item<float>() > 0 ? 1 : 2);
  };
  const ModelTensors nested{.parameters = {{"head.scale.w", weight}}, .buffers = {}};
  EXPECT_THAT(capture_error(unguarded, nested), HasSubstr("aten::item after module head.scale"));
}

}  // namespace
}  // namespace penstock::graph
