// What every snippet of the other pages may use: headers, and names that the text describes or calls yours.
#include <penstock/penstock.h>
#include <penstock/train/trainer.h>

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace ps = penstock;

constexpr int kRanks = 4, kMicrobatches = 8, kSteps = 60;

// The model of examples/sharded.cpp.
struct BlockImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x);
};
TORCH_MODULE(Block);
struct GptImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& tokens);
  std::vector<Block> blocks;
};
TORCH_MODULE(Gpt);
extern Gpt gpt;

extern torch::Device device;
extern ps::World world;
extern torch::Tensor x, target, tokens, targets, rows;
extern torch::nn::Sequential model;
extern torch::optim::AdamW optimizer;
extern std::string text;

torch::nn::Sequential make_stage(int stage);
torch::nn::Sequential make_gpt();
torch::Tensor make_batch(int step);
torch::Tensor share_of(const torch::Tensor& batch, const ps::World& world);
torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& targets);
torch::Tensor my_loss(const torch::Tensor& output, const torch::Tensor& target);
