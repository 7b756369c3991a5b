// Measures how costs grow with the size of a job. Ranks are threads, and costs are CPU time of the process,
// so that other programs and the number of cores matter little. Prints one JSON object: a list of [size,
// cost] per series; a cost is the median of several runs. Usage:
// growth_bench ranks|stages|microbatches|parameters|setup LARGEST RUNS
#include "base/json.h"
#include "base/text.h"
#include "comm/counting_store.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/store_client.h"
#include "comm/shm/host.h"
#include "comm/transport/gloo_transport.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/penstock.h>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <thread>

namespace ps = penstock;

namespace {

using Clock = std::chrono::steady_clock;
//! [size, cost] by series.
using Series = std::map<std::string, std::vector<std::pair<int, double>>>;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

//! CPU seconds of all ranks while they run `body`; valid on rank 0.
double measured(const ps::comm::Group& group, const std::function<void()>& body) {
  group.barrier();
  const double start = cpu_seconds();
  group.barrier();
  body();
  group.barrier();
  return cpu_seconds() - start;
}

//! A stage that computes almost nothing.
struct ScaleImpl : torch::nn::Module {
  ScaleImpl() : factor(register_parameter("factor", torch::ones({1}))) {}
  at::Tensor forward(const at::Tensor& x) { return x * factor; }
  at::Tensor factor;
};
TORCH_MODULE(Scale);

struct PipelineCost {
  double setup = 0;       //!< CPU seconds per rank
  double per_action = 0;  //!< CPU microseconds
};

PipelineCost pipeline_cost(const char* schedule, int ranks, int per_rank, int microbatches) {
  constexpr int steps = 5;
  const int num_stages = ranks * per_rank;
  PipelineCost cost;
  ps::comm::run_thread_ranks(ranks, [&](ps::comm::World& world) {
    std::vector<ps::runtime::PipelineStage> stages;
    for (int s = world.rank().value; s < num_stages; s += ranks)
      stages.emplace_back(Scale(), ps::StageId(s), num_stages, at::kCPU, world.group());
    ps::runtime::PipelineOptions options;
    options.loss = ps::runtime::tensor_loss([](const at::Tensor& y, const at::Tensor&) { return y.sum(); });
    options.return_outputs = false;
    std::optional<ps::runtime::PipelineSchedule> pipeline;
    const double setup =
        measured(world.group(), [&] { pipeline.emplace(stages, schedule, microbatches, options); });
    const at::Tensor batch = torch::ones({microbatches, 1});
    const auto run = [&](int count) {
      for (int step = 0; step < count; ++step) pipeline->step({batch}, batch);
    };
    run(2);
    const double seconds = measured(world.group(), [&] { run(steps); });
    if (world.rank().value != 0) return;
    std::size_t actions = 0;
    for (const ps::schedule::ActionList& list : pipeline->program().draft().ranks) actions += list.size();
    cost = {setup / ranks, 1e6 * seconds / steps / static_cast<double>(actions)};
  });
  return cost;
}

std::vector<int> sizes(int from, int to, int factor) {
  std::vector<int> all;
  for (int size = from; size <= to; size *= factor) all.push_back(size);
  return all;
}

Series over_ranks(int largest) {
  Series series;
  pipeline_cost("1F1B", 2, 1, 8);  // the first pipeline of a process also initializes libtorch
  for (const char* const schedule : {"1F1B", "GPipe"}) {
    for (const int ranks : sizes(2, largest, 2)) {
      const PipelineCost cost = pipeline_cost(schedule, ranks, 1, 2 * ranks);
      series[ps::str_cat(schedule, " step, CPU us per action")].emplace_back(ranks, cost.per_action);
      series[ps::str_cat(schedule, " pipeline set-up, CPU us per rank")].emplace_back(ranks,
                                                                                      1e6 * cost.setup);
    }
  }
  return series;
}

Series over_stages(int largest) {
  Series series;
  pipeline_cost("1F1B", 2, 1, 8);
  for (const char* const schedule : {"Interleaved1F1B", "LoopedBFS"})
    for (const int per_rank : sizes(1, largest, 2))
      series[ps::str_cat(schedule, " step, CPU us per action")].emplace_back(
          per_rank, pipeline_cost(schedule, 2, per_rank, 16).per_action);
  return series;
}

Series over_microbatches(int largest) {
  Series series;
  pipeline_cost("1F1B", 2, 1, 8);
  for (const char* const schedule : {"1F1B", "GPipe"})
    for (const int count : sizes(8, largest, 2))
      series[ps::str_cat(schedule, " step, CPU us per action")].emplace_back(
          count, pipeline_cost(schedule, 2, 1, count).per_action);
  return series;
}

//! Many small parameters.
struct ManyImpl : torch::nn::Module {
  explicit ManyImpl(int count) {
    for (int i = 0; i < count; ++i)
      parameters_.push_back(register_parameter("p" + std::to_string(i), torch::ones({4})));
  }
  at::Tensor forward(const at::Tensor& x) { return (torch::stack(parameters_) * x).sum(); }
  std::vector<at::Tensor> parameters_;
};
TORCH_MODULE(Many);

Series over_parameters(int largest) {
  constexpr int steps = 5, ranks = 2;
  Series series;
  std::mutex mutex;
  for (const int count : sizes(10, largest, 10)) {
    ps::comm::run_thread_ranks(ranks, [&](ps::comm::World& world) {
      Many module(count);
      torch::optim::SGD optimizer(module->parameters(), 1e-3);
      const at::Tensor x = torch::ones({1});
      const auto run = [&](int repeats) {
        for (int step = 0; step < repeats; ++step) {
          optimizer.zero_grad();
          ps::call(module, x).backward();
          optimizer.step();
        }
      };
      const auto add = [&](const char* name, double seconds, int repeats) {
        const std::lock_guard lock(mutex);
        if (world.rank().value == 0)
          series[name].emplace_back(count, 1e6 * seconds / repeats / ranks / count);
      };
      run(2);
      add("step without replicas, CPU us per tensor", measured(world.group(), [&] { run(steps); }), steps);
      std::optional<ps::Replica> replica;
      add("replica set-up, CPU us per tensor",
          measured(world.group(), [&] { replica.emplace(ps::replicate(module, world.group())); }), 1);
      run(2);
      add("step with replicas, CPU us per tensor", measured(world.group(), [&] { run(steps); }), steps);
    });
  }
  return series;
}

//! Runs `join(rank, store)` on a thread per rank. Returns the messages to the store and the seconds.
std::pair<double, double> store_traffic(
    int ranks, const std::function<void(int rank, const c10::intrusive_ptr<c10d::Store>&)>& join) {
  ps::comm::StoreOptions options{.host = "127.0.0.1", .hosts = true, .only_here = true};
  options.timeout = std::chrono::minutes(2);
  const auto server = ps::comm::open_store(options);
  const auto calls = std::make_shared<std::atomic<std::int64_t>>(0);
  std::vector<c10::intrusive_ptr<c10d::Store>> clients;
  for (int rank = 0; rank < ranks; ++rank)
    clients.push_back(c10::make_intrusive<ps::test::CountingStore>(server->clone(), calls));
  const auto start = Clock::now();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { join(rank, clients[static_cast<std::size_t>(rank)]); });
  for (std::thread& thread : threads) thread.join();
  return {static_cast<double>(*calls), std::chrono::duration<double>(Clock::now() - start).count()};
}

Series setup(int largest) {
  constexpr std::chrono::minutes limit{2};
  Series series;
  for (const int ranks : sizes(2, largest, 2)) {
    std::vector<int> members;
    for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
    const auto [messages, seconds] = store_traffic(ranks, [&](int rank, const auto& store) {
      const auto generation = std::make_shared<ps::comm::WorldGeneration>(ps::Rank(rank), limit);
      await_members(*store, *generation, "join", members, limit);
    });
    series["join, store messages per rank"].emplace_back(ranks, messages / ranks);
    series["join, ms"].emplace_back(ranks, 1e3 * seconds);
    if (ranks > 128)
      continue;  // every rank maps the memory of every rank: more mappings than a process may have
    const auto [with_shm, shm_seconds] = store_traffic(ranks, [&](int rank, const auto& store) {
      const auto generation = std::make_shared<ps::comm::WorldGeneration>(ps::Rank(rank), limit);
      ps::comm::shm::announce_on_host(*store, "bench/", ps::Rank(rank));
      await_members(*store, *generation, "join", members, limit);
      ps::comm::shm::connect_host(*store, *generation, "bench/", ranks, limit);
    });
    series["join with shared memory, store messages per rank"].emplace_back(ranks, with_shm / ranks);
    series["join with shared memory, ms"].emplace_back(ranks, 1e3 * shm_seconds);
    if (ranks > 32) continue;  // Gloo connects every pair: the descriptors of one process are not enough
    const auto [with_gloo, gloo_seconds] = store_traffic(ranks, [&](int rank, const auto& store) {
      const auto generation = std::make_shared<ps::comm::WorldGeneration>(ps::Rank(rank), limit);
      ps::comm::make_gloo_transport(store, "bench/", "127.0.0.1", limit)
          ->connect(*generation, "world", members, rank);
    });
    series["gloo group, store messages per rank"].emplace_back(ranks, with_gloo / ranks);
    series["gloo group, ms"].emplace_back(ranks, 1e3 * gloo_seconds);
  }
  return series;
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, Series (*)(int)> kinds{{"ranks", over_ranks},
                                                     {"stages", over_stages},
                                                     {"microbatches", over_microbatches},
                                                     {"parameters", over_parameters},
                                                     {"setup", setup}};
  const auto kind = argc == 4 ? kinds.find(argv[1]) : kinds.end();
  if (kind == kinds.end()) {
    std::cerr << "usage: growth_bench ranks|stages|microbatches|parameters|setup LARGEST RUNS\n";
    return 2;
  }
  at::set_num_threads(1);
  std::map<std::string, std::map<int, std::vector<double>>> costs;  // by series and size, of all runs
  for (int run = 0; run < std::max(1, std::atoi(argv[3])); ++run) {
    for (const auto& [name, points] : kind->second(std::atoi(argv[2])))
      for (const auto& [size, cost] : points) costs[name][size].push_back(cost);
  }
  ps::JsonWriter json;
  json.begin_object();
  for (auto& [name, points] : costs) {
    json.key(name).begin_array();
    for (auto& [size, runs] : points) {
      std::sort(runs.begin(), runs.end());
      json.begin_array().value(size).value(runs[runs.size() / 2]).end_array();
    }
    json.end_array();
  }
  std::cout << json.end_object().text() << std::endl;
}
