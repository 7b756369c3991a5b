// Pipes through the executor, over thread ranks and over processes, against the whole model run microbatch by
// microbatch.
#include "../graph/models.h"
#include "../graph/tensor_file.h"
#include "executor.h"
#include "support/process_ranks.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/comm/world.h>
#include <penstock/pipe/wrappers.h>

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <random>

namespace penstock {
namespace {

using test::archive;
using test::Batch;

const SplitSpec uncut = SplitPolicy([](const Graph&) { return Cuts{}; });

//! A batch of 8 rows for each of the committed archives. Thread ranks draw it at the same time, so from
//! generators of their own.
Batch batch_for(const std::string& name) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(4);
  const auto normal = [&](at::IntArrayRef sizes) { return at::randn(sizes, generator); };
  if (name == "gpt") return {{at::randint(0, 13, {8, 5}, generator, at::kLong)}};
  if (name == "convnet") return {{normal({8, 2, 8, 8})}};
  if (name == "lstm") return {{normal({8, 5, 3})}};
  if (name == "mixed") {
    c10::Dict<std::string, at::Tensor> other;
    other.insert("u", normal({8, 3}));
    return {{normal({8, 4}), true}, {{"other", other}}};
  }
  return {{normal({8, 6})}};
}

//! `stages` stages at random legal cuts; the same on every rank.
SplitPolicy random_cuts(int stages, unsigned seed) {
  return [stages, seed](const Graph& graph) {
    const Cuts legal = legal_cuts(graph);
    Cuts cuts;
    std::mt19937 random(seed);
    std::sample(legal.begin(), legal.end(), std::back_inserter(cuts), static_cast<std::size_t>(stages - 1),
                random);
    return cuts;
  };
}

PipelineOptions own_loss() {
  PipelineOptions options;
  options.loss = test::any_loss;
  options.loss_needs_target = false;
  return options;
}

void expect_archive_trains(const std::string& name, int stages, const std::string& schedule,
                           const Group& group) {
  SCOPED_TRACE(name + " in " + std::to_string(stages) + " stages, " + schedule + ", " +
               std::to_string(group.size()) + " ranks");
  const Batch batch = batch_for(name);
  const auto expected =
      test::train_dense(test::whole_of(load_pt2(archive(name + ".pt2"), uncut)), test::any_loss, batch);
  const auto seed = static_cast<unsigned>(stages);
  const Pipe pipe = load_pt2(archive(name + ".pt2"), random_cuts(stages, seed));
  test::expect_step(pipe, schedule, own_loss(), batch, expected, group);
}

//! The random state is the process's: thread ranks make their batches one after the other.
void expect_all_train(const Group& group) {
  const int ranks = group.size();
  for (const std::string name : {"mlp", "gpt", "convnet", "mixed", "lstm"}) {
    const auto most =
        static_cast<int>(legal_cuts(load_pt2(archive(name + ".pt2"), uncut).graph()).size()) + 1;
    for (int stages = ranks; stages <= std::min(8, most); stages += ranks) {
      expect_archive_trains(name, stages, stages == ranks ? "1F1B" : "Interleaved1F1B", group);
    }
  }
  expect_archive_trains("gpt", 2 * ranks, "ZBVZeroBubble", group);
}

TEST(PipeTrains, AsTheWholeDoesOverFourRanks) {
  at::set_num_threads(1);
  run_thread_ranks(4, [](World& world) { expect_all_train(world.group()); });
}

const test::RankFunction train_in_processes("pipe_trains", [] {
  at::set_num_threads(1);
  const World world = init();
  expect_all_train(world.group());
  return ::testing::Test::HasFailure() ? 1 : 0;
});

TEST(PipeTrains, AsTheWholeDoesOverProcesses) {
  const auto outcome = test::run_process_ranks("pipe_trains", 2);
  EXPECT_TRUE(outcome.result.ok) << outcome.text();
}

//! The inputs that Python ran on, and the same rows once more in the other order; for 2 microbatches.
Batch batch_of_archive(const Graph& graph, const std::string& name) {
  const auto tensors = test::read_tensors(archive(name + ".safetensors"));
  std::vector<c10::IValue> leaves;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const auto it = tensors.find("r0.in." + std::to_string(i));
    leaves.push_back(it == tensors.end() ? *graph.inputs[i].baked
                                         : c10::IValue(at::cat({it->second, it->second.flip(0)})));
  }
  const c10::IValue tree = unflatten(leaves, graph.input_structure);
  Batch batch{tree.toTupleRef().elements()[0].toTupleRef().elements().vec(), {}, 2};
  for (const auto& entry : tree.toTupleRef().elements()[1].toGenericDict())
    batch.kwargs.emplace(entry.key().toStringRef(), entry.value());
  return batch;
}

TEST(PipeTrains, RealArchitecturesAsTheWholeDoes) {
  at::set_num_threads(1);
  for (const auto& [name, ranks, stages, schedule] :
       {std::tuple("gpt2", 2, 4, "Interleaved1F1B"), std::tuple("llama", 3, 3, "1F1B"),
        std::tuple("bert", 2, 2, "GPipe"), std::tuple("t5", 2, 4, "ZBVZeroBubble"),
        std::tuple("vit", 4, 8, "Interleaved1F1B"), std::tuple("marked", 2, 2, "1F1B")}) {
    SCOPED_TRACE(name);
    const std::string file = archive(std::string(name) + ".pt2");
    const Pipe whole = load_pt2(file, uncut);
    const Batch batch = batch_of_archive(whole.graph(), name);
    const auto expected = test::train_dense(test::whole_of(whole), test::any_loss, batch);
    const Pipe pipe = load_pt2(file, random_cuts(stages, 5));
    run_thread_ranks(ranks, [&, by = schedule](World& world) {
      test::expect_step(pipe, by, own_loss(), batch, expected, world.group());
    });
  }
}

//! A captured model over 2, 3 and 4 ranks in one and two stages each.
template <class Holder>
void expect_captured_trains(const std::string& name, Holder model, const Batch& batch) {
  const Chunks chunks = split_args_kwargs_into_chunks(batch.args, batch.kwargs, batch.microbatches);
  const Pipe whole = pipeline(model, chunks.args[0], {}, uncut);
  const auto expected = test::train_dense(test::whole_of(whole), test::any_loss, batch);
  const auto most = static_cast<int>(legal_cuts(whole.graph()).size()) + 1;
  for (const int ranks : {2, 3, 4}) {
    for (int stages = ranks; stages <= std::min(2 * ranks, most); stages += ranks) {
      SCOPED_TRACE(name + " in " + std::to_string(stages) + " stages on " + std::to_string(ranks) + " ranks");
      model->zero_grad();
      const Pipe pipe = pipeline(model, chunks.args[0], {}, random_cuts(stages, 3));
      run_thread_ranks(ranks, [&](World& world) {
        test::expect_step(pipe, stages == ranks ? "1F1B" : "Interleaved1F1B", own_loss(), batch, expected,
                          world.group());
      });
    }
  }
}

//! The first of the outputs.
struct FirstOfLstmImpl : torch::nn::Module {
  FirstOfLstmImpl() {
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(3, 4).batch_first(true)));
    head = register_module("head", torch::nn::Linear(4, 2));
  }
  at::Tensor forward(at::Tensor x) { return head(torch::relu(std::get<0>(lstm(x.tanh())))); }
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(FirstOfLstm);

//! Attention over the second dim.
struct EncoderImpl : torch::nn::Module {
  EncoderImpl() {
    const auto layer = torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16);
    encoder = register_module("encoder",
                              torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(layer, 2)));
  }
  at::Tensor forward(at::Tensor x) { return encoder(x.transpose(0, 1)).transpose(0, 1); }
  torch::nn::TransformerEncoder encoder{nullptr};
};
TORCH_MODULE(Encoder);

TEST(PipeTrains, CapturedModelsAsTheWholeDoes) {
  at::set_num_threads(1);
  torch::manual_seed(9);
  expect_captured_trains("mlp", test::Mlp(), {{torch::randn({8, 6})}});
  expect_captured_trains("gpt", test::Gpt(), {{torch::randint(0, 13, {8, 6})}});
  expect_captured_trains("convnet", test::ConvNet(), {{torch::randn({8, 2, 8, 8})}});
  expect_captured_trains("lstm", FirstOfLstm(), {{torch::randn({8, 5, 3})}});
  expect_captured_trains("encoder", Encoder(), {{torch::randn({8, 3, 8})}});
}

TEST(PipeTrains, BuffersAreWrittenAsInTheWhole) {
  at::set_num_threads(1);
  torch::manual_seed(10);
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::BatchNorm1d(6), torch::nn::ReLU(),
                                 torch::nn::Linear(6, 5), torch::nn::BatchNorm1d(5));
  };
  torch::nn::Sequential dense = make();
  const auto model = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(dense->clone());
  const auto x = torch::randn({12, 4});
  for (const at::Tensor& part : x.chunk(4)) dense->forward(part);
  const Pipe pipe = pipeline(PipeSequential(model), {x.narrow(0, 0, 3)}, Balanced{2});
  run_thread_ranks(2, [&](World& world) {
    PipelineSchedule pipeline({pipe.build_stage(world.rank().value, at::kCPU, world.group())}, "1F1B", 4,
                              pipe.schedule_options(own_loss()));
    pipeline.step(world.rank().value == 0 ? Args{x} : Args{});
  });
  const auto expected = dense->named_buffers(), got = model->named_buffers();
  ASSERT_EQ(got.size(), 6U);
  for (const auto& buffer : expected)
    EXPECT_TRUE(at::allclose(got[buffer.key()], buffer.value(), 1e-5, 1e-7)) << buffer.key();
  EXPECT_EQ(got["1.num_batches_tracked"].item<int>(), 4);
}

TEST(PipeTrains, AtMarksBalancedAndWithCapturedModels) {
  at::set_num_threads(1);
  const Batch tokens = batch_for("gpt");
  const auto expected =
      test::train_dense(test::whole_of(load_pt2(archive("gpt.pt2"), uncut)), test::any_loss, tokens);
  for (const SplitSpec& spec : {SplitSpec(AtMarks{}), SplitSpec(Balanced{2, BalanceBy::Flops})}) {
    const Pipe pipe = load_pt2(archive("gpt.pt2"), spec);
    run_thread_ranks(2, [&](World& world) {
      test::expect_step(pipe, "GPipe", own_loss(), tokens, expected, world.group());
    });
  }
  torch::manual_seed(6);
  test::UNet unet;
  const Batch images{{torch::randn({4, 1, 8, 8})}};
  const Args example{torch::randn({1, 1, 8, 8})};
  const auto wanted =
      test::train_dense(test::whole_of(pipeline(unet, example, {}, uncut)), test::any_loss, images);
  for (const auto& [stages, schedule] : {std::pair(3, "1F1B"), std::pair(6, "Interleaved1F1B")}) {
    unet->zero_grad();
    const Pipe pipe = pipeline(unet, example, {}, random_cuts(stages, 2));
    run_thread_ranks(3, [&](World& world) {
      test::expect_step(pipe, schedule, own_loss(), images, wanted, world.group());
    });
  }
}

}  // namespace
}  // namespace penstock
