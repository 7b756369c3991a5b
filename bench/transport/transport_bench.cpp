// Measures messages and collectives between 2 processes: `transport_bench BACKEND` starts its own ranks.
// reference.py measures the same with the reference over Gloo.
#include <penstock/comm/launcher.h>
#include <penstock/comm/world.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <utility>
#include <vector>

namespace ps = penstock;

namespace {

using Clock = std::chrono::steady_clock;

//! The median seconds of `body`, after some runs that do not count.
double median(int runs, const std::function<void()>& body) {
  std::vector<double> seconds;
  for (int run = -runs / 4; run < runs; ++run) {
    const auto start = Clock::now();
    body();
    if (run >= 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
  return seconds[static_cast<std::size_t>(runs / 2)];
}

//! Seconds of one message of `bytes`: half of a round trip.
double message(const ps::comm::Group& group, std::int64_t bytes, int runs) {
  const at::Tensor sent = at::ones(bytes, at::kByte), got = at::empty(bytes, at::kByte);
  return median(runs,
                [&] {
                  if (group.rank() == 0) {
                    group.isend(sent, 1);
                    group.recv(got, 1);
                  } else {
                    group.recv(got, 0);
                    group.isend(sent, 0);
                  }
                }) /
         2;
}

double all_reduce(const ps::comm::Group& group, std::int64_t bytes, int runs) {
  const at::Tensor tensor = at::ones(bytes / 4);
  return median(runs, [&] { group.all_reduce(tensor); });
}

int run_rank(const std::string& backend) {
  at::set_num_threads(1);
  const ps::comm::World world = ps::comm::init({.backend = ps::comm::parse_backend(backend)});
  const ps::comm::Group& group = world.group();
  std::vector<std::pair<const char*, double>> results{{"message_1k_s", message(group, 1 << 10, 2000)},
                                                      {"message_64k_s", message(group, 64 << 10, 400)},
                                                      {"message_16m_s", message(group, 16 << 20, 30)},
                                                      {"all_reduce_1k_s", all_reduce(group, 1 << 10, 1000)},
                                                      {"all_reduce_16m_s", all_reduce(group, 16 << 20, 30)}};
  group.barrier();
  if (world.rank() != ps::Rank(0)) return 0;
  std::cout << "{\"backend\": \"" << group.backend() << "\"";
  for (const auto& [name, seconds] : results) std::cout << ", \"" << name << "\": " << seconds;
  std::cout << "}" << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: transport_bench gloo|shm\n";
    return 2;
  }
  if (std::getenv("RANK") != nullptr) return run_rank(argv[1]);
  ps::comm::LaunchOptions launch;
  launch.command = {std::filesystem::read_symlink("/proc/self/exe").string(), argv[1]};
  launch.ranks = 2;
  launch.on_line = [](ps::Rank, ps::comm::OutputStream stream, std::string_view line) {
    (stream == ps::comm::OutputStream::Err ? std::cerr : std::cout) << line << "\n";
  };
  return ps::comm::launch(launch).exit_code();
}
