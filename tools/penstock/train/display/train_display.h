// Display of a run: one line per step, or a progress bar on a terminal. Rank 0 writes the lines. The command,
// which owns the terminal, draws them.
#pragma once

#include <penstock/comm/launcher.h>
#include <penstock/train/trainer.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>

namespace penstock::tool {

enum class DisplayMode { Plain, Terminal, Json };

//! What rank 0 prints.
struct DisplayOptions {
  DisplayMode mode = DisplayMode::Plain;
  bool quiet = false;                   //!< only warnings and the result
  std::set<std::string> unimportant{};  //!< messages of the run that are not warnings
  bool dashboard = false;               //!< write marked lines for the live page
  std::string config{};                 //!< of this run, to compare with that of a checkpoint
  std::set<std::string> given{};        //!< keys of the settings that were given
};

//! Passes `mode`, `quiet` and `given` to rank 0 in its environment, and reads them there.
void set_display(comm::LaunchOptions& launch, const DisplayOptions& options);
DisplayOptions display_from_environment();

//! Creates the observer that shows the progress of training on rank 0.
std::unique_ptr<train::Observer> make_display(const DisplayOptions& options);

//! Prints the ranks' output lines in the launching process. A line that starts with the marker overwrites the
//! previous marked line.
class LineDrawer {
 public:
  void draw(Rank rank, comm::OutputStream stream, std::string_view line);
  //! Ends the line of the current progress bar, if any.
  void finish();

 private:
  bool bar_shown_ = false;
};

}  // namespace penstock::tool
