// Measures the overhead of an operator on distributed tensors vs. plain tensors: an add of 16x16, the best of
// many rounds. The mesh has one rank, so nothing is sent and only the bookkeeping is measured. Prints JSON.
#include "base/json.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/tensor/dtensor.h>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>

namespace ps = penstock;

namespace {

constexpr int kCalls = 2000, kRounds = 60;

double microseconds(const torch::Tensor& a, const torch::Tensor& b) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) {
      const torch::Tensor c = a + b;
    }
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count() / kCalls);
  }
  return best;
}

void write_times(ps::JsonWriter& json, const char* name, double plain, double distributed) {
  const auto rounded = [](double us) { return std::round(us * 1e3) / 1e3; };
  json.key(name).begin_object();
  json.field("plain_us", rounded(plain)).field("dtensor_us", rounded(distributed)).end_object();
}

}  // namespace

int main() {
  at::set_num_threads(1);
  ps::comm::run_thread_ranks(1, [](ps::comm::World& world) {
    const ps::tensor::DeviceMesh mesh(world.group(), {1}, {"tp"});
    const torch::Tensor a = torch::randn({16, 16}), b = torch::randn({16, 16});
    const torch::Tensor da = ps::tensor::distribute_tensor(a, mesh, {ps::tensor::Shard(0)}),
                        db = ps::tensor::distribute_tensor(b, mesh, {ps::tensor::Shard(0)});
    ps::JsonWriter json;
    json.begin_object();
    write_times(json, "no_grad", microseconds(a, b), microseconds(da, db));
    const torch::Tensor ag = a.clone().requires_grad_(),
                        dag = ps::tensor::distribute_tensor(ag, mesh, {ps::tensor::Shard(0)});
    write_times(json, "grad", microseconds(ag, b), microseconds(dag, db));
    std::cout << json.end_object().text() << std::endl;
  });
}
