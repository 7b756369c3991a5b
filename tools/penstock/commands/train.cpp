// `penstock train`: settles what is asked for, starts the ranks, and says how it went. What a rank does is in
// train_rank.cpp.
#include "arguments.h"
#include "commands.h"
#include "launching.h"
#include "train_display.h"
#include "train_rank.h"
#include "train_settings.h"

#include <penstock/base/error.h>
#include <penstock/base/json.h>
#include <penstock/comm/launcher.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace penstock::tool {
namespace {

void complain(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

// A rank that `penstock run` or torchrun started, perhaps on several machines.
bool started_by_another_launcher() {
  return std::getenv("RANK") != nullptr && std::getenv("MASTER_ADDR") != nullptr;
}

}  // namespace

int train_command(Arguments& arguments) {
  TrainSettings asked;
  Settings settings(arguments);
  asked.declare(settings);
  arguments.option("--config", asked.config, "a TOML file of these options; the command line wins");
  arguments.parse();
  if (!asked.config.empty()) settings.read(asked.config);
  asked.settle();
  settings.leave_out(asked.idle());
  asked.run.config = settings.toml();
  if (is_rank_of("train")) return be_a_training_rank(asked);
  if (started_by_another_launcher()) {
    if (std::string(std::getenv("RANK")) == "0")
      for (const std::string& line : asked.prepare_outputs()) print(line + "\n");
    return be_a_training_rank(asked);
  }

  const int ranks = asked.run.parallel.ranks();
  const DisplayForm form = arguments.json() ? DisplayForm::Json
                           : on_terminal()  ? DisplayForm::Terminal
                                            : DisplayForm::Plain;
  const std::vector<std::string> made = asked.prepare_outputs();
  if (form != DisplayForm::Json) print("# settled configuration\n" + asked.run.config + "\n");
  for (const std::string& line : made)
    if (form != DisplayForm::Json) print(line + "\n");
  LaunchOptions launch_options = ranks_of("train", ranks, settings.words());
  set_display(launch_options, form);
  launch_options.max_restarts = static_cast<int>(asked.max_restarts);
  launch_options.grace = std::chrono::seconds(5);
  LineDrawer drawer;
  launch_options.on_line = [&](Rank rank, bool is_error, std::string_view line) {
    drawer.draw(rank, is_error, line);
  };
  launch_options.on_start = [&](const std::vector<pid_t>&) { drawer.finish(); };
  Places places(ranks);
  places.attach(launch_options);
  const LaunchResult result = launch(launch_options);
  drawer.finish();
  places.print_unless_well(result);
  if (form == DisplayForm::Json) print(result_json(result) + "\n");
  if (!result.ok && result.signal == 0) complain("penstock: error: " + result.report());
  return result.exit_code();
}

}  // namespace penstock::tool
