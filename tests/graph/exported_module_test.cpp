// Archives loaded as torch::nn modules: arguments and outputs, memory, conversions, errors. Training is
// compared with Python in exported_training_test.cpp.
#include "support/error_message.h"
#include "support/same_bits.h"
#include "support/temp_dir.h"
#include "support/tensor_file.h"

#include <penstock/graph/graph_module.h>
#include <penstock/graph/graph_text.h>
#include <penstock/graph/pt2.h>
#include <penstock/graph/pt2_copy.h>
#include <penstock/load_module.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <sstream>
#include <thread>

namespace penstock::graph {
namespace {

using c10::IValue;
using test::archive;
using test::error_message;
using test::same_bits;
using testing::AllOf;
using testing::HasSubstr;

const std::string kTransformer = PENSTOCK_SOURCE_DIR "/tests/parallel/archives/transformer.pt2";

at::Tensor tokens(std::int64_t rows = 4) {
  return at::arange(rows * 6).mul(7).remainder(17).view({rows, 6});
}

TEST(GraphExportedModule, UsesRegisteredTensors) {
  ExportedModule model = load_module(archive("mlp.pt2"));
  const at::Tensor x = torch::ones({3, 6});
  const at::Tensor before = model(x);
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.zero_();
  }
  EXPECT_FALSE(same_bits(before, x));
  EXPECT_TRUE(same_bits(model(x), x));  // every layer adds 0
}

TEST(GraphExportedModule, TiedParametersAreListedOnceAndSavedUnderEachName) {
  const ExportedModule model = load_module(kTransformer);
  const auto parameters = model->named_parameters();
  EXPECT_TRUE(parameters.contains("token.weight"));
  EXPECT_FALSE(parameters.contains("head.weight"));
  EXPECT_TRUE(model->named_modules().contains("head"));
  EXPECT_EQ(model->input_names(), std::vector<std::string>{"tokens"});
  const auto state = model->state_dict();
  EXPECT_EQ(state["head.weight"].data_ptr(), parameters["token.weight"].data_ptr());
  EXPECT_EQ(state.size(), parameters.size() + 1);
}

TEST(GraphExportedModule, TakesTensorsOrArgsAndKwargs) {
  ExportedModule model = load_module(kTransformer);
  const at::Tensor logits = model->forward({tokens()}).toGenericDict().at("logits").toTensor();
  EXPECT_TRUE(same_bits(model->forward_named(tokens()).at("output.logits"), logits));
  EXPECT_TRUE(same_bits(model->forward_named({tokens()}).at("output.logits"), logits));

  ExportedModule mixed = load_module(archive("mixed.pt2"));  // forward(x, flag, *, other)
  const Pt2Archive file(archive("mixed.pt2"));
  GraphModule oracle(file.graph(), file.load(file.graph().slots));
  const auto given = test::read_tensors(archive("mixed.safetensors"));
  c10::impl::GenericDict other(c10::StringType::get(), c10::AnyType::get());
  other.insert("u", given.at("r0.in.2"));
  const Args args = {given.at("r0.in.0"), true};
  Kwargs kwargs = {{"other", other}};
  const auto outputs = mixed->forward_named(args, kwargs);
  const auto expected = value::tensors_of(oracle.forward(args, kwargs));
  ASSERT_EQ(outputs.size(), expected.size());
  EXPECT_TRUE(same_bits(outputs.at("output.first"), expected[0]));
  EXPECT_TRUE(same_bits(outputs.at("output.second.z"), expected[1]));
  EXPECT_THAT(error_message<UsageError>([&] { mixed->forward(args); }),
              HasSubstr("keyword argument 'other' is missing"));
  kwargs["odd"] = 1;
  EXPECT_THAT(error_message<UsageError>([&] { mixed->forward(args, kwargs); }),
              HasSubstr("no keyword argument 'odd'"));
}

TEST(GraphExportedModule, CloneKeepsSharedMemory) {
  const ExportedModule model = load_module(archive("overlap.pt2"));
  const ExportedModule copy = std::dynamic_pointer_cast<ExportedModuleImpl>(model->clone());
  const auto ours = model->state_dict(), copied = copy->state_dict();
  int shared = 0;
  for (const auto& a : ours) {
    EXPECT_NE(a.value().storage().data_ptr().get(), copied[a.key()].storage().data_ptr().get()) << a.key();
    EXPECT_TRUE(same_bits(a.value(), copied[a.key()]));
    for (const auto& b : ours) {
      const bool same = a.value().storage().data_ptr().get() == b.value().storage().data_ptr().get();
      shared += same && a.key() != b.key() ? 1 : 0;
      EXPECT_EQ(same,
                copied[a.key()].storage().data_ptr().get() == copied[b.key()].storage().data_ptr().get())
          << a.key() << " " << b.key();
    }
  }
  EXPECT_GT(shared, 0);
}

TEST(GraphExportedModule, ModesReachSubmodulesAndClones) {
  ExportedModule model = load_module(archive("convnet.pt2"));
  model->named_modules()["norm1"]->eval();
  const auto copy = model->clone();
  EXPECT_TRUE(copy->is_training());
  EXPECT_FALSE(copy->named_modules()["norm1"]->is_training());
  EXPECT_TRUE(copy->named_modules()["norm2"]->is_training());
  model->eval();
  EXPECT_FALSE(model->named_modules()["norm2"]->is_training());
  const at::Tensor x = torch::ones({2, 2, 8, 8});
  EXPECT_TRUE(same_bits(model(x), model(x)));  // no dropout, no new statistics
}

TEST(GraphExportedModule, WorksAsSubmodule) {
  struct User : torch::nn::Module {
    User() : body(load_module(kTransformer)) { register_module("body", body); }
    ExportedModule body;
  };
  User user;
  user.eval();
  EXPECT_FALSE(user.body->named_modules()["blocks.0"]->is_training());
  EXPECT_TRUE(user.named_parameters().contains("body.blocks.0.mlp.up.weight"));
  user.to(torch::kDouble);
  EXPECT_EQ(user.body->parameters()[0].scalar_type(), torch::kDouble);
}

TEST(GraphExportedModule, ConvertsDtypeInPlace) {
  ExportedModule model = load_module(archive("convnet.pt2"));
  model->eval();
  const at::Tensor weight = model->named_parameters()["conv1.weight"];
  const at::Tensor x = torch::linspace(-1, 1, 2 * 2 * 8 * 8).view({2, 2, 8, 8});
  const at::Tensor expected = model(x);
  model->zero_grad();
  expected.sum().backward();
  model->to(torch::kDouble);
  EXPECT_EQ(weight.scalar_type(), torch::kDouble);  // an optimizer's handle is converted, too
  EXPECT_EQ(weight.grad().scalar_type(), torch::kDouble);
  EXPECT_EQ(model->named_buffers()["norm1.num_batches_tracked"].scalar_type(), torch::kLong);
  const at::Tensor output = model(x.to(torch::kDouble));
  EXPECT_EQ(output.scalar_type(), torch::kDouble);
  EXPECT_LT((output - expected).abs().max().item<double>(), 1e-5);
  EXPECT_FALSE(same_bits(output.to(torch::kFloat), torch::zeros_like(expected)));
  output.sum().backward();
  EXPECT_THAT(error_message<ShapeError>([&] { model(x); }), HasSubstr("is float32, expected float64"));
  EXPECT_THAT(error_message<UsageError>([&] { model->to(torch::kLong); }), HasSubstr("floating-point"));
}

TEST(GraphExportedModule, ErrorNamesOperatorWithFixedDtype) {
  // The model casts its input to float32, which does not fit converted weights.
  const Graph graph = parse_graph(R"(graph {
  inputs ((%x : float32[2, 4],), {})
  param %w : float32[4, 4] = "fc.weight"
  %y : float32[2, 4] = aten::to.dtype(%x, float32, False, False, None)
  %z : float32[2, 4] = aten::linear(%y, %w, None) @ fc
  return %z
})");
  ExportedModule model(graph, std::vector<at::Tensor>{torch::eye(4)});
  EXPECT_TRUE(same_bits(model(torch::ones({2, 4})), torch::ones({2, 4})));
  model->to(torch::kDouble);
  EXPECT_THAT(error_message<OperatorError>([&] {
                model(torch::ones({2, 4}, torch::kDouble));
              }),
              AllOf(HasSubstr("aten::linear of module fc"), HasSubstr("exported in float32"),
                    HasSubstr("converted to float64"), HasSubstr("before you export it")));
}

TEST(GraphExportedModule, MovesTensorsAndRecordedDevices) {
  // The meta device stands for any other device. It has the operators of this graph.
  const Graph graph = parse_graph(R"(graph {
  inputs ((%x : float32[2, 4],), {})
  param %w : float32[4] = "w"
  const %k : float32[4] = "k"
  %z : float32[2, 4] = aten::zeros([2, 4], float32, strided, device("cpu"), False)
  %a : float32[2, 4] = aten::add.Tensor(%x, %z, 1)
  %b : float32[2, 4] = aten::add.Tensor(%a, %w, 1)
  %c : float32[2, 4] = aten::add.Tensor(%b, %k, 1)
  return %c
})");
  ExportedModule model(graph,
                       std::vector<at::Tensor>{torch::ones({4}).set_requires_grad(true), torch::ones({4})});
  const at::Tensor weight = model->parameters()[0];
  EXPECT_TRUE(same_bits(model(torch::ones({2, 4})), torch::full({2, 4}, 3.0)));
  model->to(torch::kMeta);
  EXPECT_TRUE(weight.is_meta());
  EXPECT_TRUE(model(torch::ones({2, 4}, torch::kMeta)).is_meta());
  model->to(torch::kCPU);  // with uninitialized memory
  EXPECT_TRUE(weight.is_cpu());
  EXPECT_TRUE(weight.requires_grad());
  EXPECT_TRUE(model(torch::ones({2, 4})).is_cpu());
}

TEST(GraphExportedModule, RunsOnSeveralThreads) {
  ExportedModule model = load_module(kTransformer);
  model->eval();
  const torch::NoGradGuard no_grad;
  const at::Tensor expected = model->forward_named(tokens()).at("output.logits");
  ExportedModule fresh = load_module(kTransformer);  // compiled by whichever thread comes first
  fresh->eval();
  std::vector<at::Tensor> outputs(4);
  std::vector<std::thread> threads;
  for (at::Tensor& output : outputs) {
    threads.emplace_back([&] {
      const torch::NoGradGuard thread_no_grad;
      output = fresh->forward_named(tokens()).at("output.logits");
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& output : outputs) EXPECT_TRUE(same_bits(output, expected));
}

TEST(GraphExportedModule, RunsInInferenceMode) {
  ExportedModule model = load_module(archive("convnet.pt2"));
  model->eval();
  const at::Tensor x = torch::linspace(-1, 1, 2 * 2 * 8 * 8).view({2, 2, 8, 8});
  const at::Tensor expected = model(x);
  EXPECT_TRUE(expected.requires_grad());
  {
    const torch::NoGradGuard no_grad;
    const at::Tensor output = model(x);
    EXPECT_FALSE(output.requires_grad());
    EXPECT_TRUE(same_bits(output, expected));
  }
  const c10::InferenceMode inference;
  const at::Tensor output = model(x);
  EXPECT_TRUE(output.is_inference());
  EXPECT_TRUE(same_bits(output, expected));
}

TEST(GraphExportedModule, TrainedWeightsGoToCopyOfArchive) {
  const test::TempDir folder;
  for (const std::string& file : {kTransformer, archive("convnet.pt2")}) {
    ExportedModule model = load_module(file);
    {
      const torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) parameter.add_(0.5);
      for (at::Tensor& buffer : model->buffers()) buffer.add_(1);
    }
    const torch::OrderedDict<std::string, at::Tensor> state = model->state_dict();
    copy_archive(file, folder / "trained.pt2", [&](const std::string& name) { return state[name]; });
    const ExportedModule again = load_module(folder / "trained.pt2"), before = load_module(file);
    const auto stored = again->state_dict(), old = before->state_dict();
    ASSERT_EQ(stored.size(), state.size());
    for (const auto& item : state) {
      EXPECT_TRUE(same_bits(stored[item.key()], item.value())) << item.key();
      EXPECT_FALSE(same_bits(old[item.key()], item.value())) << item.key();
    }
  }
}

TEST(GraphExportedModule, RejectsInvalidArgumentsWithReason) {
  ExportedModule model = load_module(kTransformer), mlp = load_module(archive("mlp.pt2"));
  EXPECT_THAT(error_message<UsageError>([&] { model->forward_named(tokens(), tokens()); }),
              AllOf(HasSubstr("takes 1 positional arguments, but 2 were given"), HasSubstr("tokens int64[")));
  EXPECT_THAT(error_message<UsageError>([&] { model(tokens()); }),
              AllOf(HasSubstr("returns {logits: *}, not one tensor"), HasSubstr("output.logits")));
  EXPECT_THAT(error_message<ShapeError>([&] { model->forward({tokens().to(torch::kFloat)}); }),
              HasSubstr("args[0] (tokens) is float32, expected int64"));
  EXPECT_THAT(error_message<ShapeError>([&] { model->forward({tokens().flatten()}); }),
              HasSubstr("args[0] (tokens) has 1 dims"));
  EXPECT_THAT(error_message<ShapeError>([&] { model->forward({tokens(65)}); }),
              HasSubstr("exported for 1 to 64"));
  EXPECT_THAT(error_message<ShapeError>([&] {
                mlp(torch::ones({3, 7}));
              }),
              AllOf(HasSubstr("dim 1 of args[0] (x) is 7, expected 6"), HasSubstr("dynamic_shapes")));
  EXPECT_THAT(error_message<ShapeError>([&] { model->forward({IValue(3)}); }), HasSubstr("is a int"));
}

TEST(GraphExportedModule, RejectsInvalidFilesWithReason) {
  const test::TempDir folder;
  EXPECT_THAT(error_message<StorageError>([&] { load_module(folder / "none.pt2"); }),
              AllOf(HasSubstr("none.pt2"), HasSubstr("does not exist"), HasSubstr("torch.export.save")));
  std::ofstream(folder / "text.pt2") << "this is not an archive, but a text of some length";
  EXPECT_THAT(error_message<ParseError>([&] { load_module(folder / "text.pt2"); }),
              AllOf(HasSubstr("text.pt2"), HasSubstr("not written by torch.export.save")));
  torch::save(torch::nn::Linear(2, 3), folder / "script.pt");  // C++ writes TorchScript archives
  EXPECT_THAT(error_message<ParseError>([&] { load_module(folder / "script.pt"); }),
              AllOf(HasSubstr("script.pt' is a TorchScript archive"), HasSubstr("torch.export")));
  EXPECT_THAT(error_message<StorageError>([&] { load_module(folder.path()); }), HasSubstr("cannot open"));
}

TEST(GraphExportedModule, RejectsStateOfAnotherModel) {
  ExportedModule model = load_module(kTransformer), other = load_module(archive("mlp.pt2"));
  std::stringstream file;
  torch::save(other, file);
  EXPECT_THROW(torch::load(model, file), c10::Error);
}

TEST(GraphExportedModule, PrintsArgumentsAndSubmodules) {
  std::ostringstream text;
  text << *load_module(kTransformer);
  EXPECT_THAT(text.str(), AllOf(HasSubstr("ExportedModule(tokens int64["), HasSubstr("(blocks)")));
}

}  // namespace
}  // namespace penstock::graph
