// Measures lower bounds of a pipeline over Gloo: `messages` exchanges the messages of a 1F1B step without
// computing; `autograd` runs the forward and backward passes of one stage in a loop without sending;
// `timeline` records actions; `overlap` runs a forward and a backward pass sequentially and concurrently.
#include "base/json.h"
#include "models.h"

#include <penstock/comm/launcher.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <thread>

namespace ps = penstock;

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print(const ps::JsonWriter& json) {
  std::cout << json.text() << std::endl;
}

// The order of 1F1B on 2 ranks: rank 0 is one forward pass ahead.
double exchange(const ps::comm::Group& group, int microbatches, const at::Tensor& value) {
  std::vector<at::Tensor> buffers;
  std::vector<ps::comm::Work> receives, sends;
  const bool first = group.rank() == 0;
  const int there = first ? 0 : 1, back = 1 - there;
  for (int m = 0; m < microbatches; ++m) {
    buffers.push_back(at::empty_like(value));
    receives.push_back(group.irecv(buffers.back(), 1 - group.rank(), 2 * m + back));
  }
  group.barrier();
  const auto start = Clock::now();
  const auto send = [&](int m) { sends.push_back(group.isend(value, 1 - group.rank(), 2 * m + there)); };
  if (first) send(0);
  for (int m = 0; m < microbatches; ++m) {
    if (first && m + 1 < microbatches) send(m + 1);
    receives[static_cast<std::size_t>(m)].wait();
    if (!first) send(m);
  }
  const double seconds = since(start);
  ps::comm::Work::detach_all(std::move(sends));
  return seconds;
}

int messages(int microbatches, int elements) {
  ps::comm::World world = ps::comm::init();
  std::vector<double> seconds;
  for (int i = 0; i < 15; ++i)
    seconds.push_back(exchange(world.group(), microbatches, at::zeros({elements})));
  if (world.rank().value != 0) return 0;
  ps::JsonWriter json;
  json.begin_object().field("messages", elements);
  json.field("us_per_microbatch", median(seconds) / microbatches * 1e6).end_object();
  print(json);
  return 0;
}

// Runs a forward and its backward pass like a stage: the input is a leaf; the backward pass starts from the
// loss or from an output gradient.
void run_once(const ps::bench::Work& work, bool last, const at::Tensor& x, const at::Tensor& target) {
  const at::Tensor input = x.detach().requires_grad_(x.is_floating_point());
  at::Tensor y = work.module->forward({input}, {}).output.toTensor();
  if (last) y = work.loss(y, target, {});
  y.backward(last ? at::Tensor() : at::ones_like(y));
}

int autograd() {
  at::set_num_threads(1);
  for (const int rank : {0, 1}) {
    const ps::bench::Work work = ps::bench::linear(rank);
    const auto xs = work.args[0].toTensor().chunk(256), targets = work.target.toTensor().chunk(256);
    std::vector<double> seconds;
    for (int i = 0; i < 15; ++i) {
      const auto start = Clock::now();
      for (std::size_t m = 0; m < xs.size(); ++m) run_once(work, rank == 1, xs[m], targets[m]);
      seconds.push_back(since(start));
    }
    ps::JsonWriter json;
    json.begin_object().field("autograd", rank).field("us_per_microbatch", median(seconds) / 256 * 1e6);
    print(json.end_object());
  }
  return 0;
}

int timeline() {
  constexpr int count = 100000;
  std::vector<ps::schedule::TimedAction> times;
  times.reserve(count);
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) {
    const auto from = Clock::now(), to = Clock::now();
    times.push_back({ps::schedule::Action::forward(ps::StageId(0), ps::MicrobatchId(i)),
                     std::chrono::duration<double>(from - start).count(),
                     std::chrono::duration<double>(to - start).count()});
  }
  const double seconds = since(start);
  ps::JsonWriter json;
  print(json.begin_object().field("timeline_ns_per_action", seconds / count * 1e9).end_object());
  return 0;
}

// Runs the forward pass of one stage and the backward pass of another, as in OVERLAP_F_B.
int overlap() {
  const ps::bench::Work one = ps::bench::gpt(0), other = ps::bench::gpt(1);
  const at::Tensor tokens = one.args[0].toTensor().narrow(0, 0, 1),
                   hidden = other.hidden(1).requires_grad_(true);
  const at::Tensor target = other.target.toTensor().narrow(0, 0, 1);
  const auto forward = [&] { return one.module->forward({tokens}, {}).output.toTensor(); };
  const auto loss = [&] { return other.loss(other.module->forward({hidden}, {}).output, target, {}); };
  const auto run = [&](int threads, bool concurrent) {
    at::set_num_threads(threads);
    std::vector<double> seconds;
    for (int i = 0; i < 15; ++i) {
      const at::Tensor root = loss();
      const auto start = Clock::now();
      if (concurrent) {
        std::thread second([&] {
          at::set_num_threads(threads);
          root.backward();
        });
        forward();
        second.join();
      } else {
        forward();
        root.backward();
      }
      seconds.push_back(since(start));
    }
    return median(seconds) * 1e3;
  };
  ps::JsonWriter json;
  json.begin_object().key("overlap_ms").begin_object();
  json.field("sequential_1_thread_per_operator", run(1, false));
  json.field("concurrent_1_thread_per_operator", run(1, true));
  json.field("sequential_2_threads_per_operator", run(2, false));
  json.field("concurrent_2_threads_per_operator", run(2, true));
  print(json.end_object().end_object());
  return 0;
}

}  // namespace

// floor_bench messages [MICROBATCHES ELEMENTS] | autograd | timeline | overlap
int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "autograd") return autograd();
  if (what == "timeline") return timeline();
  if (what == "overlap") return overlap();
  if (what != "messages") {
    std::cerr << "usage: floor_bench messages|autograd|timeline|overlap\n";
    return 2;
  }
  const int microbatches = argc > 2 ? std::atoi(argv[2]) : 256, elements = argc > 3 ? std::atoi(argv[3]) : 16;
  if (std::getenv("RANK") != nullptr) return messages(microbatches, elements);
  ps::comm::LaunchOptions launch;
  launch.command = {std::filesystem::read_symlink("/proc/self/exe").string(), "messages",
                    std::to_string(microbatches), std::to_string(elements)};
  launch.ranks = 2;
  launch.environment["OMP_NUM_THREADS"] = "1";
  launch.on_line = [](ps::Rank, ps::comm::OutputStream stream, std::string_view line) {
    (stream == ps::comm::OutputStream::Err ? std::cerr : std::cout) << line << "\n";
  };
  return ps::comm::launch(launch).exit_code();
}
