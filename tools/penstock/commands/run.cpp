// `penstock run`: starts a program on several ranks, on one or more nodes.
#include "base/option_ranges.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/libtorch.h"
#include "cli/paths.h"
#include "cli/verbosity.h"
#include "commands/commands.h"
#include "commands/launching.h"
#include "config/settings.h"
#include "train/preflight/output_paths.h"

#include <penstock/base/error.h>

#include <unistd.h>

#include <charconv>

namespace penstock::tool {
namespace {

// Parses HOST:PORT. IPv6 addresses are written in brackets.
void set_rendezvous(comm::LaunchOptions& options, const std::string& text) {
  const auto colon = text.rfind(':');
  int port = 0;
  const char* const end = text.data() + text.size();
  const bool read = colon != std::string::npos && colon > 0 &&
                    std::from_chars(text.data() + colon + 1, end, port).ptr == end && port > 0 &&
                    port < 65536;
  if (!read)
    throw UsageError("--rendezvous " + quote(text) + " is not HOST:PORT", {}, "for example 10.0.0.1:29500");
  options.host = text.substr(0, colon);
  if (options.host.front() == '[' && options.host.back() == ']') {
    options.host = options.host.substr(1, options.host.size() - 2);
  }
  options.port = static_cast<std::uint16_t>(port);
}

std::chrono::milliseconds time_of(const std::string& option, double seconds) {
  if (!(seconds >= 0 && seconds <= 1e6))
    throw UsageError(option + " must be a number of seconds from 0 to 1000000");
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

}  // namespace

int run_command(Arguments& arguments) {
  restore_library_path();
  comm::LaunchOptions options;
  std::int64_t ranks = 1, nodes = 1, node_rank = 0, restarts = 0;
  double grace = 10, join_timeout = 120;
  std::optional<std::string> rendezvous, log_dir, token_file;
  arguments.option("--ranks", ranks, "number of ranks on this node");
  arguments.option("--nodes", nodes, "number of nodes; run this command on each of them");
  arguments.option("--node-rank", node_rank, "index of this node, from 0");
  arguments.option("--rendezvous", rendezvous, "HOST:PORT of node 0, the same on every node");
  arguments.option(
      "--token-file", token_file,
      "a file with a secret shared by all nodes (default: node 0 distributes one; see docs/security.md)");
  arguments.option("--join-timeout", join_timeout, "seconds to wait for the other nodes");
  arguments.option("--max-restarts", restarts, "maximum number of restarts of all ranks after failures");
  arguments.option(
      "--log-dir", log_dir,
      "write output to attempt<A>/rank<R>.out and .err in this directory instead of the terminal");
  arguments.option("--grace", grace, "seconds that the other ranks get to exit on their own after a failure");
  Verbosity verbosity;
  verbosity.declare(arguments);
  arguments.rest("PROGRAM", options.command, "the program and its arguments");
  arguments.parse();
  verbosity.apply();
  verbosity.pass_to(options.environment);
  if (options.command.empty())
    throw UsageError("no PROGRAM given", {}, "for example penstock run --ranks 2 -- ./my_program");
  if (nodes > 1 && !rendezvous)
    throw UsageError("--nodes needs --rendezvous HOST:PORT, the address of node 0");
  if (restarts < 0) throw UsageError("--max-restarts must be at least 0", {}, "use 0 for no restarts");
  options.ranks = count_option(ranks, "--ranks");
  options.nodes = count_option(nodes, "--nodes");
  options.node_rank = static_cast<int>(node_rank);
  options.max_restarts = static_cast<int>(restarts);
  options.grace = time_of("--grace", grace);
  options.join_timeout = time_of("--join-timeout", join_timeout);
  if (rendezvous) set_rendezvous(options, *rendezvous);
  if (log_dir) {
    options.log_dir = *log_dir;
    const std::string created = make_output_directory(*log_dir, "--log-dir");
    if (!created.empty() && !verbosity.quiet && !arguments.json()) print(created + "\n");
    if (access(log_dir->c_str(), W_OK | X_OK) != 0)
      throw UsageError("--log-dir " + quote(*log_dir, 200) + " is not writable", {},
                       "choose another directory");
  }
  if (token_file) {
    check_input_file(*token_file);
    options.token_file = *token_file;
  }
  print_notices(options);
  if (arguments.json()) report_as_json(options);
  // The board is indexed by global rank, and the size of the job is not known yet. Unused entries take no
  // memory.
  ProgressReporter progress(nodes > 1 ? 4096 : options.ranks);
  progress.attach(options);
  const comm::LaunchResult result = launch(options);
  progress.print_if_failed(result);
  return finish_launch(result, arguments.json());
}

}  // namespace penstock::tool
