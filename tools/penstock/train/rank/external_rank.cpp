// Runs a rank of another launcher. No command collects the errors of the ranks, so they agree who prints.
#include "train/rank/external_rank.h"

#include "base/text.h"
#include "cli/arguments.h"
#include "train/preflight/balance_check.h"
#include "train/preflight/train_checks.h"
#include "train/rank/rank_error.h"
#include "train/rank/train_rank.h"

#include <penstock/base/error.h>

#include <ATen/core/ivalue.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <vector>

namespace penstock::tool {
namespace {

struct CheckResult {
  bool passed = true;
  std::exception_ptr error{};  //!< set on the rank that prints it
};

//! Runs `check` on every rank. It passes if no rank throws UsageError; else the first rank that does gets its
//! error.
CheckResult check_everywhere(const comm::Group& group, const std::function<void()>& check) {
  std::exception_ptr error;
  std::string text;
  try {
    check();
  } catch (const UsageError& e) {
    error = std::current_exception();
    text = e.what();
  }
  const std::vector<c10::IValue> texts = group.all_gather_object(c10::IValue(text));
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].toStringRef().empty()) continue;
    return {false, static_cast<int>(rank) == group.rank() ? error : nullptr};
  }
  return {};
}

//! `--device auto` may choose different devices on different machines.
void check_same_device(const comm::World& world) {
  const std::vector<c10::IValue> all =
      world.group().all_gather_object(c10::IValue(c10::DeviceTypeName(world.device().type(), true)));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].toStringRef() == all[0].toStringRef()) continue;
    throw UsageError(str_cat("the ranks run on different devices: rank 0 on ", all[0].toStringRef(),
                             ", rank ", rank, " on ", all[rank].toStringRef()),
                     {}, "use --device cpu, or --device cuda with a device for each rank");
  }
}

void announce(const TrainSettings& request, const comm::LaunchedRank& found,
              const std::vector<std::string>& created) {
  print("# resolved configuration\n" + request.resolved_config + "\n");
  print("launcher: " + to_string(found) + "\n" + request.device_reason + "\n");
  for (const std::string& line : created) print(line + "\n");
}

//! The rank whose failure caused the error; nullopt if the error began on this rank. The trainer nests the
//! original error in one that names the step.
std::optional<Rank> failed_peer(const std::exception& error) {
  if (const auto* const failure = dynamic_cast<const PeerFailed*>(&error)) return failure->peer();
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& inner) {
    return failed_peer(inner);
  }
  return std::nullopt;
}

// Leaves the world before the error of a check is printed, so that no rank reports it as a failure.
CheckResult check_and_train(TrainSettings& request, const comm::LaunchedRank& found,
                            const DisplayOptions& display, const std::function<std::string()>& config,
                            int& stopped) {
  const comm::World world = join_world(request);
  const bool first = world.rank().value == 0;
  std::vector<std::string> created;
  CheckResult checked = check_everywhere(world.group(), [&] {
    check_size(request, found);
    // After a restart by the launcher, the run continues from its own checkpoints, which the checks refuse.
    found.attempt == 0 ? check_training(request, config) : resolve_training(request);
    if (first) created = request.prepare_outputs();
  });
  if (checked.passed) checked = check_everywhere(world.group(), [&] { check_same_device(world); });
  if (!checked.passed) return checked;
  request.resolved_config = config();
  if (first && !display.quiet && display.mode != DisplayMode::Json) announce(request, found, created);
  const auto warning = first ? balance_warning(request) : std::nullopt;
  if (warning) std::fprintf(stderr, "%s\n", warning->c_str());
  stopped = train_in(world, request, display, StopSignals::Which::Both);
  return checked;
}

}  // namespace

void check_size(const TrainSettings& request, const comm::LaunchedRank& found) {
  const int ranks = request.run.parallel.ranks();
  if (ranks == found.world_size) return;
  throw UsageError(str_cat("--pp x --tp x --dp is ", ranks, ", but the launcher started ", found.world_size,
                           " ranks (", found.job, ")"),
                   {},
                   str_cat("omit --ranks, --pp, --tp and --dp to use all ranks as pipeline stages, or start ",
                           ranks, " ranks"));
}

int run_external_rank(TrainSettings& request, const comm::LaunchedRank& found, const DisplayOptions& display,
                      const std::function<std::string()>& config) {
  try {
    int stopped = 0;
    const CheckResult checked = check_and_train(request, found, display, config, stopped);
    // Only the rank that prints the error fails: mpirun kills all ranks as soon as one of them fails.
    if (checked.error) std::rethrow_exception(checked.error);
    return stopped == 0 ? 0 : 128 + stopped;
  } catch (const Error& error) {
    // Every rank except the failed one raises PeerFailed. The first of them prints it.
    const std::optional<Rank> peer = failed_peer(error);
    if (!peer || found.rank.value == (peer->value == 0 ? 1 : 0)) throw;
    return 1;
  }
}

}  // namespace penstock::tool
