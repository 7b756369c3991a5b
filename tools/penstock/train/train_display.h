// Display of a run: one line per step, or a progress bar on a terminal. Rank 0 writes the lines. The command,
// which owns the terminal, draws them.
#pragma once

#include <penstock/comm/launcher.h>
#include <penstock/train/trainer.h>

#include <chrono>
#include <memory>
#include <string>

namespace penstock::tool {

enum class DisplayMode { Plain, Terminal, Json };

//! Passes the display mode to rank 0 in its environment, and reads it there.
void set_display(comm::LaunchOptions& launch, DisplayMode mode);
DisplayMode display_mode();

//! Creates the observer that shows the progress of training on rank 0.
std::unique_ptr<train::Observer> make_display(DisplayMode mode);

//! Prints the ranks' output lines in the launching process. A line that starts with the marker overwrites the
//! previous marked line.
class LineDrawer {
 public:
  void draw(Rank rank, bool is_error, std::string_view line);
  //! Ends the line of the current progress bar, if any.
  void finish();

 private:
  bool bar_shown_ = false;
};

//! Whether standard output can show a progress bar.
bool on_terminal();

}  // namespace penstock::tool
