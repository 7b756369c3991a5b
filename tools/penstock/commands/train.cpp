// `penstock train`: resolves the settings, starts the ranks and reports the result. train_rank.cpp has the
// code of a rank.
#include "base/json.h"
#include "cli/arguments.h"
#include "cli/terminal.h"
#include "commands/commands.h"
#include "commands/launching.h"
#include "config/train_settings.h"
#include "train/display/dashboard.h"
#include "train/display/failure_report.h"
#include "train/display/train_display.h"
#include "train/forecast/dry_run.h"
#include "train/preflight/balance_check.h"
#include "train/preflight/train_checks.h"
#include "train/rank/external_rank.h"
#include "train/rank/train_rank.h"

#include <penstock/base/error.h>
#include <penstock/comm/launched_rank.h>
#include <penstock/comm/launcher.h>

#include <ATen/Parallel.h>

#include <cstdio>
#include <optional>
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

// The command line takes precedence over the opposite in a file.
void prefer_command_line(const Arguments& arguments, TrainSettings& request) {
  const auto given = [&](const char* option) { return arguments.given(option); };
  if (given("--epochs") && !given("--steps")) request.steps.reset();
  if (given("--steps") && !given("--epochs")) request.epochs = 0;
  RankRequest& ranks = request.rank_request;
  if (given("--pp") || given("--tp") || given("--dp")) {
    if (!given("--ranks")) ranks.ranks.reset();
  } else if (given("--ranks")) {
    ranks.pp = ranks.tp = ranks.dp = std::nullopt;
  }
  // A resolved configuration has both numbers of stages.
  const bool changes_stages = given("--ranks") || given("--pp") || given("--stages-per-rank");
  if (changes_stages && !given("--stages") && request.stages_per_rank) request.stages.reset();
  if (given("--stages") && !given("--stages-per-rank")) request.stages_per_rank.reset();
  Verbosity& verbosity = request.verbosity;
  if (given("--verbose") && !given("--quiet")) verbosity.quiet = false;
  if (given("--quiet") && !given("--verbose")) verbosity.verbose = false;
}

void announce_dashboard(const std::string& address, bool json) {
  JsonWriter out;
  if (json) {
    print(out.begin_object().field("dashboard", address).end_object().text() + "\n");
  } else {
    print("the dashboard is at " + address + "\n");
  }
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
  prefer_command_line(arguments, request);
  const Verbosity& verbosity = request.verbosity;
  verbosity.apply();
  const bool is_launched_rank = is_rank_of("train");
  const comm::LaunchedRank found = comm::detect_rank();
  const bool is_external_rank = !is_launched_rank && is_rank(found);
  if (is_external_rank && request.dashboard)
    throw UsageError(
        "--dashboard needs a command that starts the ranks itself, but a launcher started this rank", {},
        "use --tensorboard DIR instead");
  if (found.allocated_tasks > 1)
    std::fprintf(stderr,
                 "warning: %s\nhint: the ranks start on this machine only; `srun penstock train …` uses all "
                 "tasks of the job\n",
                 to_string(found).c_str());
  if (is_external_rank) {
    request.default_ranks = found.world_size;
    request.local_ranks = local_ranks(found);
  }
  if (!is_launched_rank) request.given = settings.given_keys();
  request.refuse_idle(settings);
  request.resolve();
  settings.omit(request.idle());
  settings.omit(TrainSettings::display_options());
  DisplayOptions display{.mode = arguments.json() ? DisplayMode::Json : DisplayMode::Plain,
                         .quiet = verbosity.quiet};
  const auto config = [&] { return settings.toml(); };
  if (request.dry_run) {
    if (is_external_rank && found.rank.value != 0) return 0;  // rank 0 prints for all
    if (is_external_rank) check_size(request, found);
    check_training(request, config);
    request.resolved_config = config();
    print(dry_run_report(request, found, display.mode == DisplayMode::Json));
    return 0;
  }
  if (is_external_rank) return run_external_rank(request, found, display, config);
  if (!is_launched_rank) {
    // The checks are small. If a thread cannot be created, OpenMP would end the process without our error.
    at::set_num_threads(1);
    check_training(request, config);
  }
  request.resolved_config = config();
  if (is_launched_rank) return run_training_rank(request);

  const int ranks = request.run.parallel.ranks();
  const bool json = display.mode == DisplayMode::Json;
  if (!json && on_terminal()) display.mode = DisplayMode::Terminal;
  const std::vector<std::string> created = request.prepare_outputs();
  if (!json && !display.quiet) {
    print("# resolved configuration\n" + request.resolved_config + "\n");
    print(request.device_reason + "\n");
    for (const std::string& line : created) print(line + "\n");
  }
  if (const auto warning = balance_warning(request)) std::fprintf(stderr, "%s\n", warning->c_str());
  comm::LaunchOptions launch_options = ranks_of("train", ranks, settings.command_line());
  display.given = request.given;
  set_display(launch_options, display);
  verbosity.pass_to(launch_options.environment);
  launch_options.max_restarts = static_cast<int>(request.max_restarts);
  launch_options.grace = std::chrono::seconds(5);
  launch_options.graceful_stop = true;
  std::optional<Dashboard> dashboard;
  if (request.dashboard) dashboard.emplace();
  if (dashboard) announce_dashboard(dashboard->address(), json);
  LineDrawer drawer;
  FailureReport::Options report{.ranks = ranks, .hint = hint_after_failure(request)};
  if (!request.failure_log.empty()) report.details = request.failure_log;
  FailureReport failures(std::move(report));
  launch_options.on_line = [&](Rank rank, comm::OutputStream stream, std::string_view line) {
    if (dashboard && rank.value == 0 && dashboard->data().take(line)) return;
    if (!failures.take(rank, stream, line)) drawer.draw(rank, stream, line);
  };
  launch_options.on_start = [&](const std::vector<pid_t>&) { drawer.finish(); };
  failures.attach(launch_options);
  const comm::LaunchResult result = launch(launch_options);
  drawer.finish();
  if (json) print(result_json(result) + "\n");
  return failures.finish(result);
}

}  // namespace penstock::tool
