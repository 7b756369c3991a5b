// Pipes trained through the executor, on thread ranks and on processes, compared with the unsplit model
// run microbatch by microbatch.
#include "executor_comparison.h"
#include "support/models/capture_models.h"
#include "support/process_ranks.h"
#include "support/tensor_file.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/comm/world.h>
#include <penstock/pipe/wrappers.h>

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <functional>
#include <random>

namespace penstock::pipe {
namespace {

using test::archive;
using test::Batch;

const SplitSpec kNoSplit = SplitPolicy([](const graph::Graph&) { return graph::SplitPositions{}; });

const std::vector<std::string> kSmallModels = {"mlp", "gpt", "convnet", "mixed", "lstm"};

//! A batch of 8 rows for each model, equal on every rank.
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

//! `stages` stages with random valid split positions; equal on every rank.
SplitPolicy random_split(int stages, unsigned seed) {
  return [stages, seed](const graph::Graph& graph) {
    const graph::SplitPositions legal = legal_split_positions(graph);
    graph::SplitPositions positions;
    std::mt19937 random(seed);
    std::sample(legal.begin(), legal.end(), std::back_inserter(positions),
                static_cast<std::size_t>(stages - 1), random);
    return positions;
  };
}

runtime::PipelineOptions own_loss() {
  runtime::PipelineOptions options;
  options.loss = test::any_loss;
  options.loss_needs_target = false;
  return options;
}

//! Runs a function on this number of ranks.
using OnRanks = std::function<void(int, const std::function<void(const comm::Group&)>&)>;

void on_threads(int ranks, const std::function<void(const comm::Group&)>& part) {
  comm::run_thread_ranks(ranks, [&](comm::World& world) { part(world.group()); });
}

//! Runs every number of stages up to 8 that the ranks can share.
void expect_trains(const std::string& name, const graph::Graph& unsplit,
                   const std::function<Pipe(const SplitSpec&)>& make_pipe, const Batch& batch,
                   const test::DenseStep& expected, const std::vector<int>& rank_counts = {2, 3, 4},
                   const OnRanks& on_ranks = on_threads) {
  const auto most = static_cast<int>(legal_split_positions(unsplit).size()) + 1;
  for (const int ranks : rank_counts) {
    for (int stages = ranks; stages <= std::min(8, most); stages += ranks) {
      std::vector<std::string> schedules{stages == ranks ? "1F1B" : "Interleaved1F1B"};
      if (stages == 2 * ranks) schedules.emplace_back("ZBVZeroBubble");
      for (const std::string& schedule : schedules) {
        SCOPED_TRACE(name + " in " + std::to_string(stages) + " stages, " + schedule + ", " +
                     std::to_string(ranks) + " ranks");
        Pipe pipe = make_pipe(random_split(stages, static_cast<unsigned>(ranks)));
        on_ranks(ranks, [&](const comm::Group& group) {
          test::expect_step(pipe, schedule, own_loss(), batch, expected, group);
        });
      }
    }
  }
}

using BatchOf = std::function<Batch(const graph::Graph&)>;

void expect_archive_trains(const std::string& name, const BatchOf& batch_of,
                           const std::vector<int>& rank_counts = {2, 3, 4},
                           const OnRanks& on_ranks = on_threads) {
  const std::string file = archive(name + ".pt2");
  Pipe unsplit_pipe = load_pt2(file, kNoSplit);
  const Batch batch = batch_of(unsplit_pipe.graph());
  const auto expected = test::train_dense(test::unsplit_module(unsplit_pipe), test::any_loss, batch);
  const auto make_pipe = [&](const SplitSpec& spec) { return load_pt2(file, spec); };
  expect_trains(name, unsplit_pipe.graph(), make_pipe, batch, expected, rank_counts, on_ranks);
}

void expect_small_models_train(const std::vector<int>& rank_counts = {2, 3, 4},
                               const OnRanks& on_ranks = on_threads) {
  for (const std::string& name : kSmallModels)
    expect_archive_trains(
        name, [&](const graph::Graph&) { return batch_for(name); }, rank_counts, on_ranks);
}

const test::RankFunction train_in_processes("pipe_trains", [] {
  at::set_num_threads(1);
  const comm::World world = comm::init();
  const comm::Group& group = world.group();
  expect_small_models_train({group.size()}, [&](int, const auto& part) { part(group); });
  return ::testing::Test::HasFailure() ? 1 : 0;
});

TEST(PipeTraining, MatchesUnsplitModelOverProcesses) {
  const auto outcome = test::run_process_ranks("pipe_trains", 2);
  EXPECT_TRUE(outcome.result.ok) << outcome.text();
}

//! The inputs of the Python run, followed by the same rows in reverse order; for 2 microbatches.
Batch batch_of_archive(const graph::Graph& graph, const std::string& name) {
  const auto tensors = test::read_tensors(archive(name + ".safetensors"));
  std::vector<c10::IValue> leaves;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const auto it = tensors.find("r0.in." + std::to_string(i));
    leaves.push_back(it == tensors.end() ? *graph.inputs[i].constant
                                         : c10::IValue(at::cat({it->second, it->second.flip(0)})));
  }
  const c10::IValue tree = unflatten(leaves, graph.input_structure);
  Batch batch{tree.toTupleRef().elements()[0].toTupleRef().elements().vec(), {}, 2};
  for (const auto& entry : tree.toTupleRef().elements()[1].toGenericDict())
    batch.kwargs.emplace(entry.key().toStringRef(), entry.value());
  return batch;
}

TEST(PipeTraining, MatchesUnsplitArchives) {
  at::set_num_threads(1);
  expect_small_models_train();
}

TEST(PipeTraining, MatchesUnsplitRealArchitectures) {
  at::set_num_threads(1);
  for (const std::string name : {"gpt2", "llama", "bert", "t5", "vit", "marked"})
    expect_archive_trains(name, [&](const graph::Graph& graph) { return batch_of_archive(graph, name); });
}

template <class Holder>
void expect_captured_trains(const std::string& name, Holder model, const Batch& batch) {
  const value::Chunks chunks =
      value::split_args_kwargs_into_chunks(batch.args, batch.kwargs, batch.microbatches);
  Pipe unsplit_pipe = pipeline(model, chunks.args[0], {}, kNoSplit);
  const auto expected = test::train_dense(test::unsplit_module(unsplit_pipe), test::any_loss, batch);
  const auto make_pipe = [&](const SplitSpec& spec) {
    model->zero_grad();
    return pipeline(model, chunks.args[0], {}, spec);
  };
  expect_trains(name, unsplit_pipe.graph(), make_pipe, batch, expected);
}

//! Returns only the first output.
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

TEST(PipeTraining, MatchesUnsplitCapturedModels) {
  at::set_num_threads(1);
  torch::manual_seed(9);
  expect_captured_trains("mlp", test::Mlp(), {{torch::randn({8, 6})}});
  expect_captured_trains("gpt", test::Gpt(), {{torch::randint(0, 13, {8, 6})}});
  expect_captured_trains("convnet", test::ConvNet(), {{torch::randn({8, 2, 8, 8})}});
  expect_captured_trains("lstm", FirstOfLstm(), {{torch::randn({8, 5, 3})}});
  expect_captured_trains("encoder", Encoder(), {{torch::randn({8, 3, 8})}});
  expect_captured_trains("unet", test::UNet(), {{torch::randn({4, 1, 8, 8})}});
}

TEST(PipeTraining, UpdatesBuffersLikeUnsplitModel) {
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
  Pipe pipe = pipeline(PipeSequential(model), {x.narrow(0, 0, 3)}, Balanced{2});
  comm::run_thread_ranks(2, [&](comm::World& world) {
    runtime::PipelineSchedule pipeline(
        {pipe.build_stage(StageId(world.rank().value), at::kCPU, world.group())}, "1F1B", 4,
        pipe.pipeline_options(own_loss()));
    pipeline.step(world.rank().value == 0 ? value::Args{x} : value::Args{});
  });
  const auto expected = dense->named_buffers(), got = model->named_buffers();
  ASSERT_EQ(got.size(), 6U);
  for (const auto& buffer : expected)
    EXPECT_TRUE(at::allclose(got[buffer.key()], buffer.value(), 1e-5, 1e-7)) << buffer.key();
  EXPECT_EQ(got["1.num_batches_tracked"].item<int>(), 4);
}

TEST(PipeTraining, RejectsUnknownKeywordArgument) {
  at::set_num_threads(1);
  Batch batch = batch_for("mixed");
  batch.kwargs["maks"] = 1;
  Pipe pipe = load_pt2(archive("mixed.pt2"), random_split(2, 1));
  comm::run_thread_ranks(2, [&](comm::World& world) {
    const int rank = world.rank().value;
    runtime::PipelineSchedule pipeline({pipe.build_stage(StageId(rank), at::kCPU, world.group())}, "1F1B",
                                       batch.microbatches, pipe.pipeline_options(own_loss()));
    try {
      pipeline.step(rank == 0 ? batch.args : value::Args{}, {}, {.kwargs = batch.kwargs});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("no stage takes the keyword argument 'maks'"),
                std::string::npos)
          << error.what();
    }
  });
}

TEST(PipeTraining, SplitsAtMarksAndBalanced) {
  at::set_num_threads(1);
  const Batch tokens = batch_for("gpt");
  const auto expected =
      test::train_dense(test::unsplit_module(load_pt2(archive("gpt.pt2"), kNoSplit)), test::any_loss, tokens);
  for (const SplitSpec& spec : {SplitSpec(AtMarks{}), SplitSpec(Balanced{2, BalanceBy::Flops})}) {
    Pipe pipe = load_pt2(archive("gpt.pt2"), spec);
    comm::run_thread_ranks(2, [&](comm::World& world) {
      test::expect_step(pipe, "GPipe", own_loss(), tokens, expected, world.group());
    });
  }
}

}  // namespace
}  // namespace penstock::pipe
