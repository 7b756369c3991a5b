// Measures a training step of a small GPT, replicated or sharded over 2 processes with Gloo, and the memory
// of the sharded run. It starts its own ranks. reference.py measures the same with the reference.
#include "base/json.h"
#include "support/models/transformer.h"

#include <penstock/comm/launcher.h>
#include <penstock/penstock.h>

#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>

namespace ps = penstock;

namespace {

using penstock::test::QkvSplit;
using penstock::test::TransformerBlock;
using Clock = std::chrono::steady_clock;

// Counts the current and peak bytes of tensors.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = nullptr;
    if (bytes > 0 && posix_memalign(&data, 64, bytes) != 0) throw std::bad_alloc();
    const std::int64_t now = used += size_of(data);
    if (now > most) most = now;
    return {data, data, &drop, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  static inline std::atomic<std::int64_t> used{0}, most{0};

 private:
  static std::int64_t size_of(void* data) {
    return data == nullptr ? 0 : static_cast<std::int64_t>(malloc_usable_size(data));
  }
  static void drop(void* data) {
    used -= size_of(data);
    std::free(data);
  }
};

struct Size {
  std::int64_t tokens, width, layers, batch, length;
};

// The model of reference.py, whose blocks are units of sharding. Shared models have other layers or sizes.
struct GptImpl : torch::nn::Module {
  explicit GptImpl(const Size& size) {
    token = register_module("token", torch::nn::Embedding(size.tokens, size.width));
    for (int i = 0; i < size.layers; ++i)
      blocks.emplace_back(
          register_module("b" + std::to_string(i), TransformerBlock(size.width, 4, 0.0, QkvSplit::Unbind)));
    head = register_module("head",
                           torch::nn::Linear(torch::nn::LinearOptions(size.width, size.tokens).bias(false)));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = token(tokens);
    for (const TransformerBlock& block : blocks) x = ps::call(block, x);
    return head(x);
  }
  torch::nn::Embedding token{nullptr};
  std::vector<TransformerBlock> blocks;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Gpt);

std::int64_t bytes_of(const std::vector<at::Tensor>& parameters) {
  std::int64_t sum = 0;
  for (const at::Tensor& parameter : parameters) sum += static_cast<std::int64_t>(parameter.nbytes());
  return sum;
}

int run_rank(const std::string& mode, int steps) {
  at::set_num_threads(1);
  torch::manual_seed(0);
  const bool memory = mode == "memory";
  // To measure memory, keep activations negligible compared with the parameters.
  const Size size = memory ? Size{64, 512, 12, 1, 4} : Size{512, 256, 4, 8, 128};
  static CountingAllocator allocator;  // tensors may outlive this function
  if (memory) c10::SetCPUAllocator(&allocator, 200);
  ps::World world = ps::init();
  Gpt gpt(size);
  const std::int64_t total = bytes_of(gpt->parameters()), unit = bytes_of(gpt->blocks[0]->parameters());
  std::optional<ps::Replica> replica;
  std::optional<ps::Sharded> sharded;
  std::vector<at::Tensor> parameters = gpt->parameters();
  if (mode == "ddp") {
    replica.emplace(ps::replicate(gpt, world.group()));
  } else {
    std::vector<std::shared_ptr<torch::nn::Module>> units;
    for (const TransformerBlock& block : gpt->blocks) units.push_back(block.ptr());
    ps::ShardOptions options;
    options.prefetch = memory ? 0 : 1;
    parameters.clear();
    sharded.emplace(ps::fully_shard(gpt, world.group(), options, units));
    parameters = sharded->parameters();
  }
  torch::optim::SGD sgd(parameters, 1e-3);
  std::optional<torch::optim::AdamW> adamw;
  if (memory) adamw.emplace(parameters, torch::optim::AdamWOptions(1e-3));
  const at::Tensor x = torch::randint(size.tokens, {size.batch, size.length});
  const at::Tensor target = torch::randint(size.tokens, {size.batch, size.length});
  std::vector<double> seconds;
  for (int step = 0; step < steps + 2; ++step) {
    world.group().barrier();
    if (step == 2) CountingAllocator::most = CountingAllocator::used.load();
    const auto start = Clock::now();
    sgd.zero_grad();
    at::cross_entropy_loss(ps::call(gpt, x).flatten(0, 1), target.flatten()).backward();
    if (adamw) {
      adamw->step();
    } else {
      sgd.step();
    }
    world.group().barrier();
    if (step >= 2) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  if (world.rank().value == 0) {
    std::sort(seconds.begin(), seconds.end());
    ps::JsonWriter json;
    json.begin_object().field("mode", mode).field("best_s", seconds.front());
    json.field("median_s", seconds[seconds.size() / 2]).field("parameter_bytes", total);
    json.field("unit_bytes", unit).field("peak_bytes", CountingAllocator::most.load()).end_object();
    std::cout << json.text() << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: data_parallel_bench ddp|fsdp|memory STEPS\n";
    return 2;
  }
  if (std::getenv("RANK") != nullptr) return run_rank(argv[1], std::atoi(argv[2]));
  ps::comm::LaunchOptions launch;
  launch.command = {std::filesystem::read_symlink("/proc/self/exe").string(), argv[1], argv[2]};
  launch.ranks = 2;
  launch.on_line = [](ps::Rank, ps::comm::OutputStream stream, std::string_view line) {
    (stream == ps::comm::OutputStream::Err ? std::cerr : std::cout) << line << "\n";
  };
  return ps::comm::launch(launch).exit_code();
}
