// `penstock train`, for now: starts ranks as child processes of itself, which find each other and exchange
// tensors. It is the road that the trainer will take (launcher, store, group, tensors), without a model.
#include "arguments.h"
#include "commands.h"
#include "launching.h"

#include <penstock/base/error.h>
#include <penstock/base/json.h>
#include <penstock/base/text.h>
#include <penstock/comm/group.h>
#include <penstock/comm/launcher.h>
#include <penstock/comm/world.h>

#include <torch/types.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace penstock::tool {
namespace {

constexpr std::int64_t kElements = 1 << 20;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What a rank does: passes a tensor round the ring, then sums one over all ranks; both results are known
// beforehand.
int be_a_rank(bool json) {
  const auto start = Clock::now();
  const World world = init();
  const Group& group = world.group();
  const double joined = seconds_since(start);

  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  torch::Tensor received = torch::empty({kElements});
  if (group.size() > 1) {
    Work sent = group.isend(torch::full({kElements}, static_cast<float>(group.rank())), next);
    group.recv(received, previous);
    sent.wait();
  } else {
    received.fill_(0);
  }
  const bool right = torch::equal(received, torch::full({kElements}, static_cast<float>(previous)));

  torch::Tensor sum = torch::full({kElements}, static_cast<float>(group.rank() + 1));
  group.all_reduce(sum);
  const float expected = static_cast<float>(group.size() * (group.size() + 1)) / 2;
  if (!right || !torch::equal(sum, torch::full({kElements}, expected))) {
    throw Error("the tensors that arrived are not those that were sent", {.rank = world.rank()});
  }
  group.barrier();
  if (group.rank() != 0) return 0;

  if (json) {
    JsonWriter line;
    line.begin_object()
        .field("ranks", group.size())
        .field("backend", group.backend())
        .field("join_seconds", joined);
    line.field("seconds", seconds_since(start)).end_object();
    print(line.text() + "\n");
  } else {
    print(std::to_string(group.size()) + " ranks found each other over " + group.backend() + " in " +
          seconds_text(joined) + ", passed tensors of " + bytes_text(kElements * sizeof(float)) +
          " round a ring and summed them; every element was right.\n"
          "There is no trainer yet: this is the road that it will take.\n");
  }
  return 0;
}

}  // namespace

int train_command(Arguments& arguments) {
  std::int64_t ranks = 2;
  arguments.option("--ranks", ranks, "How many processes to start");
  arguments.parse();
  if (is_rank_of("train")) return be_a_rank(arguments.json());
  if (ranks < 1) throw UsageError("--ranks must be at least 1, not " + std::to_string(ranks));

  const std::vector<std::string> words =
      arguments.json() ? std::vector<std::string>{"--json"} : std::vector<std::string>{};
  LaunchOptions options = ranks_of("train", static_cast<int>(ranks), words);
  options.on_line = [](Rank rank, bool is_error, std::string_view line) {
    if (is_error) {
      std::fprintf(stderr, "[%d] %.*s\n", rank.value, static_cast<int>(line.size()), line.data());
    } else {
      print(std::string(line) + "\n");
    }
  };
  const LaunchResult result = launch(options);
  if (!result.ok) throw Error("the ranks did not all end well: " + result.report());
  return 0;
}

}  // namespace penstock::tool
