// Asks the environment and the kernel about standard output.
#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace penstock::tool {

bool on_terminal() {
  const char* const term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && !(term != nullptr && std::string_view(term) == "dumb");
}

bool wants_color() {
  const char* const no_color = std::getenv("NO_COLOR");
  return on_terminal() && (no_color == nullptr || *no_color == '\0');
}

std::optional<int> terminal_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

}  // namespace penstock::tool
