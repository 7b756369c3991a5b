// What a run shows: a line a step, a bar on a terminal. Rank 0 writes the lines; the command, which owns the
// terminal, draws them.
#pragma once

#include <penstock/comm/launcher.h>
#include <penstock/train/trainer.h>

#include <chrono>
#include <memory>
#include <string>

namespace penstock::tool {

enum class DisplayForm { Plain, Terminal, Json };

//! What rank 0 is told, and what it tells of itself.
void set_display(LaunchOptions& launch, DisplayForm form);
DisplayForm display_form();

//! Rank 0's side.
std::unique_ptr<train::Observer> make_display(DisplayForm form);

//! The command's side: prints lines of ranks; one that begins with the mark is drawn over the last such.
class LineDrawer {
 public:
  void draw(Rank rank, bool is_error, std::string_view line);
  //! Ends a bar that stands.
  void finish();

 private:
  bool bar_stands_ = false;
};

//! Standard output can show a bar.
bool on_terminal();

}  // namespace penstock::tool
