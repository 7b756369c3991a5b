// `penstock train`: resolves the settings, starts the ranks and reports the result. train_rank.cpp has the
// code of a rank.
#include "base/json.h"
#include "cli/arguments.h"
#include "commands/commands.h"
#include "commands/launching.h"
#include "config/train_settings.h"
#include "train/external_rank.h"
#include "train/failure_report.h"
#include "train/train_checks.h"
#include "train/train_display.h"
#include "train/train_rank.h"

#include <penstock/base/error.h>
#include <penstock/comm/launched_rank.h>
#include <penstock/comm/launcher.h>

#include <string>
#include <vector>

namespace penstock::tool {
namespace {

// Whether another launcher (`penstock run`, torchrun, srun, mpirun) started this process as one of its ranks.
// A single rank without a store, as of `srun -n 1`, is an ordinary command that starts ranks itself.
bool is_rank(const comm::LaunchedRank& found) {
  return found.launcher != comm::LauncherKind::None &&
         (found.world_size > 1 || !found.master_address.empty());
}

std::string hint_after_failure(const TrainSettings& request) {
  if (!request.run.checkpoint.directory)
    return "use --checkpoint DIR and --max-restarts N to continue from the last checkpoint after a failure";
  return request.max_restarts == 0 ? "use --resume to continue from the last checkpoint, or --max-restarts N "
                                     "to restart automatically"
                                   : "use --resume to continue from the last checkpoint";
}

}  // namespace

int train_command(Arguments& arguments) {
  TrainSettings request;
  Settings settings(arguments);
  request.declare(settings);
  arguments.option("--config", request.config,
                   "a TOML file with these options; the command line takes precedence");
  arguments.parse();
  if (!request.config.empty()) settings.read(request.config);
  const bool is_launched_rank = is_rank_of("train");
  const comm::LaunchedRank found = comm::detect_rank();
  const bool is_external_rank = !is_launched_rank && is_rank(found);
  if (is_external_rank) request.usual_ranks = found.world_size;
  request.refuse_idle(settings);
  request.resolve();
  settings.omit(request.idle());
  if (is_external_rank) {
    const DisplayMode plain = arguments.json() ? DisplayMode::Json : DisplayMode::Plain;
    return run_external_rank(request, found, plain, [&] { return settings.toml(); });
  }
  if (!is_launched_rank) check_training(request);
  request.run.config = settings.toml();
  if (is_launched_rank) return run_training_rank(request);

  const int ranks = request.run.parallel.ranks();
  const DisplayMode mode = arguments.json() ? DisplayMode::Json
                           : on_terminal()  ? DisplayMode::Terminal
                                            : DisplayMode::Plain;
  const std::vector<std::string> created = request.prepare_outputs();
  if (mode != DisplayMode::Json) print("# resolved configuration\n" + request.run.config + "\n");
  for (const std::string& line : created)
    if (mode != DisplayMode::Json) print(line + "\n");
  comm::LaunchOptions launch_options = ranks_of("train", ranks, settings.command_line());
  set_display(launch_options, mode);
  launch_options.max_restarts = static_cast<int>(request.max_restarts);
  launch_options.grace = std::chrono::seconds(5);
  LineDrawer drawer;
  FailureReport::Options report{.ranks = ranks, .hint = hint_after_failure(request)};
  if (!request.failure_log.empty()) report.details = request.failure_log;
  FailureReport failures(std::move(report));
  launch_options.on_line = [&](Rank rank, bool is_error, std::string_view line) {
    if (!failures.take(rank, is_error, line)) drawer.draw(rank, is_error, line);
  };
  launch_options.on_start = [&](const std::vector<pid_t>&) { drawer.finish(); };
  failures.attach(launch_options);
  const comm::LaunchResult result = launch(launch_options);
  drawer.finish();
  if (mode == DisplayMode::Json) print(result_json(result) + "\n");
  return failures.finish(result);
}

}  // namespace penstock::tool
