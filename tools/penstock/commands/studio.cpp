// `penstock studio`: serves the playground to a browser on this machine, or writes it to a file.
#include "base/json.h"
#include "base/option_ranges.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "commands/commands.h"
#include "studio/embedded_page.h"
#include "studio/page_server.h"

#include <penstock/base/error.h>

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

namespace penstock::tool {
namespace {

constexpr std::int64_t kMaxPort = 65'535;

std::string page_of(const std::string& file) {
  if (!file.empty()) return read_input(file);
  if (!kEmbeddedPage.empty()) return std::string(kEmbeddedPage);
  throw UsageError("this program was built without the playground", {},
                   "run ./dev playground in a checkout, then ./dev build tool, or name a page with --page");
}

//! Opens the address in the user's browser, if there is a desktop.
void open_browser(const std::string& address) {
  if (std::getenv("DISPLAY") == nullptr && std::getenv("WAYLAND_DISPLAY") == nullptr) return;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&actions, stream, "/dev/null", O_RDWR, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);  // the server blocks signals; the browser must not
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::string program = "xdg-open", argument = address;
  std::array<char*, 3> words{program.data(), argument.data(), nullptr};
  pid_t child = 0;
  // Without xdg-open, the user opens the printed address.
  posix_spawnp(&child, program.c_str(), &actions, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
}

void announce(const PageServer& server, bool json) {
  if (!json) {
    print("the playground is at " + server.address() + " (Ctrl-C ends it)\n");
    return;
  }
  JsonWriter out;
  out.begin_object().field("address", server.address()).field("port", server.port()).end_object();
  print(out.text() + "\n");
}

}  // namespace

int studio_command(Arguments& arguments) {
  std::optional<std::int64_t> port;
  std::string output, file;
  bool no_open = false;
  arguments.option("--port", port, "port on 127.0.0.1 (default: 8765 or, if it is in use, a free one)");
  arguments.flag("--no-open", no_open, "do not open a browser");
  arguments.option("-o,--output", output, "write the page to this file, which a browser can open, and exit");
  arguments.option("--page", file, "serve this HTML file instead of the built-in page");
  arguments.parse();
  if (port) check_between(*port, 0, kMaxPort, "--port");
  std::string page = page_of(file);
  if (!output.empty()) {
    write_output(output, page);
    return 0;
  }
  PageServer server(std::move(page), port ? std::optional(static_cast<int>(*port)) : std::nullopt);
  const Descriptor stop = stop_signals();
  announce(server, arguments.json());
  if (!no_open) open_browser(server.address());
  server.serve(stop);
  return 0;
}

}  // namespace penstock::tool
