// Measures the overhead of a split backward pass: input backward plus weight backward vs. full backward pass,
// for transformer blocks with ordinary and with deferred linears. Measures the CPU time of one thread. The
// three variants alternate, so that load on the machine affects them equally. Prints JSON.
#include "base/json.h"
#include "runtime/backward/backward.h"

#include <penstock/runtime/deferred_linear.h>

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <vector>

namespace {

using at::Tensor;

struct Size {
  std::int64_t width, rows, time, heads;
  int blocks, rounds;
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Block {
  Tensor norm1, shift1, qkv, qkv_bias, out, out_bias, norm2, shift2, up, up_bias, down, down_bias;
};

std::vector<Block> make_blocks(const Size& size) {
  const auto d = size.width;
  const auto matrix = [](std::int64_t rows, std::int64_t columns) {
    return (torch::randn({rows, columns}) * 0.02).set_requires_grad(true);
  };
  const auto vector = [](std::int64_t length) { return torch::ones({length}).set_requires_grad(true); };
  std::vector<Block> blocks;
  for (int i = 0; i < size.blocks; ++i) {
    blocks.push_back({vector(d), vector(d), matrix(3 * d, d), vector(3 * d), matrix(d, d), vector(d),
                      vector(d), vector(d), matrix(4 * d, d), vector(4 * d), matrix(d, 4 * d), vector(d)});
  }
  return blocks;
}

using Linear = Tensor (*)(const Tensor&, const Tensor&, const Tensor&);

Tensor ordinary(const Tensor& x, const Tensor& w, const Tensor& b) {
  return at::linear(x, w, b);
}
Tensor deferred(const Tensor& x, const Tensor& w, const Tensor& b) {
  return penstock::runtime::deferred_linear(x, w, b);
}

Tensor forward(const Size& size, const std::vector<Block>& blocks, Linear linear, Tensor x) {
  const auto d = size.width;
  for (const Block& b : blocks) {
    const auto parts = linear(at::layer_norm(x, {d}, b.norm1, b.shift1), b.qkv, b.qkv_bias)
                           .view({size.rows, size.time, 3, size.heads, d / size.heads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    x = x + linear(mixed.transpose(1, 2).reshape({size.rows, size.time, d}), b.out, b.out_bias);
    x = x + linear(at::gelu(linear(at::layer_norm(x, {d}, b.norm2, b.shift2), b.up, b.up_bias)), b.down,
                   b.down_bias);
  }
  return x;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

struct Samples {
  std::vector<double> whole, input_half, weight_half, both, ratio;
};

// Runs one full and one split backward pass, each after its own forward pass.
void sample(const Size& size, const std::vector<Block>& blocks, Linear whole_linear, Linear linear,
            Samples& samples) {
  const Tensor grad = torch::randn({size.rows, size.time, size.width});
  {
    const Tensor x = torch::randn({size.rows, size.time, size.width}, torch::requires_grad());
    const Tensor y = forward(size, blocks, whole_linear, x);
    const double start = cpu_seconds();
    penstock::runtime::backward_full({y}, {grad}, {x});
    samples.whole.push_back(cpu_seconds() - start);
  }
  const Tensor x = torch::randn({size.rows, size.time, size.width}, torch::requires_grad());
  const Tensor y = forward(size, blocks, linear, x);
  const double start = cpu_seconds();
  penstock::runtime::InputBackward half = penstock::runtime::backward_input({y}, {grad}, {x});
  const double middle = cpu_seconds();
  half.weights.run();
  const double end = cpu_seconds();
  samples.input_half.push_back(middle - start);
  samples.weight_half.push_back(end - middle);
  samples.both.push_back(end - start);
  samples.ratio.push_back(samples.both.back() / samples.whole.back());
}

void measure(const Size& size, const char* name, Linear linear, penstock::JsonWriter& json) {
  torch::manual_seed(1);
  const std::vector<Block> blocks = make_blocks(size);
  Samples samples, warm_up;
  for (int i = 0; i < size.rounds / 5 + 1; ++i) sample(size, blocks, ordinary, linear, warm_up);
  for (int i = 0; i < size.rounds; ++i) sample(size, blocks, ordinary, linear, samples);
  json.begin_object().field("width", size.width).field("blocks", size.blocks).field("linear", name);
  json.field("whole_ms", 1e3 * median(samples.whole)).field("input_ms", 1e3 * median(samples.input_half));
  json.field("weight_ms", 1e3 * median(samples.weight_half)).field("both_ms", 1e3 * median(samples.both));
  json.field("ratio", median(samples.ratio));  // per pair, so that variations of the machine cancel out
  json.end_object();
}

}  // namespace

int main() {
  at::set_num_threads(1);
  penstock::JsonWriter json;
  json.begin_array();
  for (const Size& size : {Size{64, 1, 32, 4, 4, 300}, Size{512, 2, 64, 8, 4, 30}}) {
    measure(size, "ordinary", ordinary, json);
    measure(size, "deferred", deferred, json);
  }
  json.end_array();
  std::puts(json.text().c_str());
}
