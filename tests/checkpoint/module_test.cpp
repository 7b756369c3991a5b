// Modules and optimizers: a run that is saved and loaded into new objects continues bitwise as if it had not
// stopped.
#include "support/check.h"
#include "support/counted_tensors.h"
#include "support/program.h"
#include "support/same_bits.h"

#include <penstock/checkpoint/module_pieces.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/comm/thread_ranks.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace penstock::checkpoint {
namespace {

using test::same_bits;
using test::TempDir;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(4, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    second = register_module("second", torch::nn::Linear(6, 4));
    unused = register_parameter("unused", torch::zeros({3}));
    tied = register_parameter("tied", first->weight);
  }
  at::Tensor forward(const at::Tensor& x) {
    return second(torch::relu(norm(first(x)))) + x.matmul(tied.t()).sum();
  }

  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor unused, tied;
};
TORCH_MODULE(Net);

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

double train_step(Net& net, torch::optim::Optimizer& optimizer, int step) {
  at::Tensor x = torch::sin(torch::arange(20, at::kFloat).reshape({5, 4}) + step);
  optimizer.zero_grad();
  at::Tensor loss = net(x).square().mean();
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

class CheckpointModule : public ::testing::TestWithParam<std::pair<const char*, MakeOptimizer>> {};

TEST_P(CheckpointModule, ResumesBitwise) {
  const MakeOptimizer& make = GetParam().second;
  const TempDir dir;
  torch::manual_seed(5);
  Net net;
  const auto optimizer = make(net->parameters());
  for (int step = 0; step < 3; ++step) train_step(net, *optimizer, step);
  comm::run_thread_ranks(1, [&](comm::World& world) {
    std::vector<Piece> pieces = module_pieces(*net);
    const std::vector<Piece> states = optimizer_pieces(pieces, *optimizer);
    pieces.insert(pieces.end(), states.begin(), states.end());
    CheckpointWriter(dir.path(), world.group()).save(3, pieces);
  });
  std::vector<double> expected, got;
  for (int step = 3; step < 8; ++step) expected.push_back(train_step(net, *optimizer, step));

  torch::manual_seed(6);
  Net other;
  const auto fresh = make(other->parameters());
  const Checkpoint checkpoint(dir / checkpoint_name(3));
  std::vector<Piece> pieces = module_pieces(*other);
  const OptimizerLoad states = optimizer_load(checkpoint, pieces, *fresh);
  pieces.insert(pieces.end(), states.pieces.begin(), states.pieces.end());
  checkpoint.load(pieces);
  states.adopt();
  for (int step = 3; step < 8; ++step) got.push_back(train_step(other, *fresh, step));
  EXPECT_EQ(got, expected);
  for (const auto& item : net->named_parameters()) {
    EXPECT_TRUE(same_bits(item.value(), other->named_parameters()[item.key()])) << item.key();
  }
  for (const auto& item : net->named_buffers())
    EXPECT_TRUE(same_bits(item.value(), other->named_buffers()[item.key()])) << item.key();
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, CheckpointModule,
    ::testing::Values(
        std::pair<const char*, MakeOptimizer>{"AdamW",
                                              [](auto p) {
                                                return std::make_unique<torch::optim::AdamW>(
                                                    std::move(p), torch::optim::AdamWOptions(0.01));
                                              }},
        std::pair<const char*, MakeOptimizer>{"AdamAmsgrad",
                                              [](auto p) {
                                                return std::make_unique<torch::optim::Adam>(
                                                    std::move(p),
                                                    torch::optim::AdamOptions(0.01).amsgrad(true));
                                              }},
        std::pair<const char*, MakeOptimizer>{"SgdMomentum",
                                              [](auto p) {
                                                return std::make_unique<torch::optim::SGD>(
                                                    std::move(p),
                                                    torch::optim::SGDOptions(0.01).momentum(0.9));
                                              }},
        std::pair<const char*, MakeOptimizer>{"Adagrad",
                                              [](auto p) {
                                                return std::make_unique<torch::optim::Adagrad>(
                                                    std::move(p),
                                                    torch::optim::AdagradOptions(0.01).lr_decay(0.1));
                                              }},
        std::pair<const char*, MakeOptimizer>{"RmsProp",
                                              [](auto p) {
                                                return std::make_unique<torch::optim::RMSprop>(
                                                    std::move(p), torch::optim::RMSpropOptions(0.01));
                                              }},
        std::pair<const char*, MakeOptimizer>{
            "RmsPropCentered",
            [](auto p) {
              return std::make_unique<torch::optim::RMSprop>(
                  std::move(p), torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
            }},
        std::pair<const char*, MakeOptimizer>{"Sgd",
                                              [](auto p) {
                                                return std::make_unique<torch::optim::SGD>(
                                                    std::move(p), torch::optim::SGDOptions(0.01));
                                              }}),
    [](const auto& chosen) { return chosen.param.first; });

TEST(CheckpointModulePieces, TiedTensorsAreOnePieceAndOtherOptimizersAreRejected) {
  Net net;
  const std::vector<Piece> pieces = module_pieces(*net, "model.");
  int tied = 0;
  for (const Piece& piece : pieces) tied += piece.aliases.empty() ? 0 : 1;
  EXPECT_EQ(tied, 1);
  EXPECT_EQ(pieces.size(), net->named_parameters().size() + net->named_buffers().size() - 1);
  EXPECT_TRUE(pieces[0].name.starts_with("model."));

  const TempDir dir;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  train_step(net, sgd, 0);
  comm::run_thread_ranks(1, [&](comm::World& world) {
    std::vector<Piece> all = module_pieces(*net);
    const std::vector<Piece> states = optimizer_pieces(all, sgd);
    all.insert(all.end(), states.begin(), states.end());
    CheckpointWriter(dir.path(), world.group()).save(1, all);
  });
  torch::optim::AdamW adamw(net->parameters());
  const Checkpoint checkpoint(dir / checkpoint_name(1));
  std::vector<Piece> all = module_pieces(*net);
  const OptimizerLoad states = optimizer_load(checkpoint, all, adamw);
  all.insert(all.end(), states.pieces.begin(), states.pieces.end());
  try {
    checkpoint.load(all);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("exp_avg of first.bias"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("momentum_buffer of first.bias"));
  }
  checkpoint.load(module_pieces(*net));  // the number of parameters alone is sufficient
}

}  // namespace
}  // namespace penstock::checkpoint
