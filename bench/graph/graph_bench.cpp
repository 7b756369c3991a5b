// Measures the replay of small operators vs. eager C++, and the capture of the GPT-2 architecture. Measures
// the CPU time of one thread. Eager and replay alternate, so that load on the machine affects both equally.
// Prints JSON.
#include "base/json.h"
#include "graph/run/interpreter.h"
#include "pipe/balance.h"
#include "support/models/transformer.h"

#include <penstock/graph/capture.h>
#include <penstock/graph/split.h>
#include <penstock/pipe/pipe.h>

#include <c10/core/Allocator.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <optional>
#include <utility>
#include <vector>

namespace {

namespace nn = torch::nn;
using c10::IValue;
using penstock::test::TransformerBlock;
using penstock::value::Args;
using penstock::value::Kwargs;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

constexpr int kAdds = 1000;

at::Tensor add_many(at::Tensor x, const at::Tensor& y) {
  for (int i = 0; i < kAdds; ++i) x = x + y;
  return x;
}

//! Seconds of a forward pass, and of a forward pass including freeing its result (with gradients, the
//! autograd graph). Freeing is part of the backward pass and costs the same in all variants.
template <class Forward>
std::pair<double, double> measure(const Forward& forward) {
  const double start = cpu_seconds();
  auto out = std::make_optional(forward());
  const double middle = cpu_seconds();
  out.reset();
  return {middle - start, cpu_seconds() - start};
}

struct Replay {
  double eager_us, replay_us, ratio;
  double freed_us;  //!< of a replay, including freeing its result
};

Replay measure_replay(bool grad) {
  const auto x = torch::rand({8}), y = torch::rand({8}).requires_grad_(grad);
  const penstock::graph::ForwardFunction forward = [](const Args& args, const Kwargs&) {
    return IValue(add_many(args[0].toTensor(), args[1].toTensor()));
  };
  const auto captured = penstock::graph::capture(forward, {}, {x, y});
  const penstock::graph::Interpreter interpreter(captured.graph);
  std::vector<double> eager, replay, ratio, freed;
  for (int i = 0; i < 220; ++i) {
    const auto plain = measure([&] { return add_many(x, y); });
    const auto again = measure([&] { return interpreter.run({x, y}, captured.tensors); });
    if (i < 20) continue;
    eager.push_back(plain.first);
    replay.push_back(again.first);
    ratio.push_back(again.first / plain.first);
    freed.push_back(again.second);
  }
  return {1e6 * median(eager) / kAdds, 1e6 * median(replay) / kAdds, median(ratio),
          1e6 * median(freed) / kAdds};
}

//! GPT-2: 12 blocks of width 768, head tied to the token embedding.
struct GptImpl : nn::Module {
  GptImpl() {
    token = register_module("token", nn::Embedding(50257, 768));
    position = register_module("position", nn::Embedding(1024, 768));
    for (int i = 0; i < 12; ++i) blocks->push_back(TransformerBlock(768, 12));
    register_module("blocks", blocks);
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({768})));
  }
  torch::Tensor forward(torch::Tensor tokens) {
    auto x = token(tokens) + position(torch::arange(tokens.size(1)));
    for (const auto& block : *blocks) x = block->as<TransformerBlock>()->forward(x);
    return torch::linear(norm(x), token->weight);
  }
  nn::Embedding token{nullptr}, position{nullptr};
  nn::ModuleList blocks;
  nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Gpt);

//! Counts the bytes that libtorch's CPU allocator allocates and frees.
struct MemoryMeter : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    now += bytes;
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t now = 0, peak = 0;
};

template <class Forward>
std::int64_t peak_of_step(const Forward& forward) {
  const auto meter = std::make_shared<MemoryMeter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  forward().toTensor().sum().backward();
  return meter->peak;
}

}  // namespace

int main() {
  at::set_num_threads(1);
  penstock::JsonWriter json;
  json.begin_object();
  for (const bool grad : {false, true}) {
    const Replay replay = measure_replay(grad);
    json.key(grad ? "grad" : "no_grad").begin_object();
    json.field("eager_us", replay.eager_us)
        .field("replay_us", replay.replay_us)
        .field("ratio", replay.ratio)
        .field("replay_and_free_us", replay.freed_us)
        .end_object();
  }
  // Capture on tensors without memory, as torch.export does, and on real tensors, which runs the forward pass
  // once.
  const Gpt real;
  const Gpt sketch = [] {
    const penstock::graph::MetaDeviceScope meta_scope;
    return Gpt();
  }();
  const auto tokens = torch::randint(0, 50257, {1, 8});
  for (const auto& [name, gpt] :
       {std::pair("gpt2_pipeline_ms", sketch), std::pair("gpt2_pipeline_with_memory_ms", real)}) {
    std::vector<double> times;
    for (int i = 0; i < 7; ++i) {
      const double start = cpu_seconds();
      const penstock::pipe::Pipe pipe =
          penstock::pipe::pipeline(gpt, {tokens}, {}, penstock::pipe::Balanced{4});
      times.push_back(cpu_seconds() - start);
    }
    json.field(name, 1e3 * median(times));
  }
  // Peak memory of the forward and backward pass of four blocks, with gradients already allocated.
  TransformerBlock block(256, 4);
  const auto x = torch::rand({4, 64, 256});
  const penstock::graph::ForwardFunction forward = [&](const Args& args, const Kwargs&) {
    auto y = args[0].toTensor();
    for (int i = 0; i < 4; ++i) y = block->forward(y);
    return IValue(y);
  };
  const auto captured = penstock::graph::capture(forward, penstock::pipe::model_tensors(*block), {x});
  penstock::graph::GraphModule module(captured.graph, captured.tensors);
  peak_of_step([&] { return forward({x}, {}); });
  json.field("eager_peak_bytes", peak_of_step([&] { return forward({x}, {}); }));
  json.field("replay_peak_bytes", peak_of_step([&] { return module.forward({x}); }));
  json.end_object();
  std::printf("%s\n", json.text().c_str());
}
