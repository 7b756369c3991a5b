// The launcher's loop: starts the ranks, forwards their output, detects the first failure, and then
// terminates the other ranks.
#include "base/io/storage_error.h"
#include "base/log_line.h"
#include "base/text.h"
#include "comm/failure/descriptor_limit.h"
#include "comm/failure/flight_summary.h"
#include "comm/failure/monitor.h"
#include "comm/launch/child_process.h"
#include "comm/launch/launch_nodes.h"
#include "comm/launch/launch_signals.h"
#include "comm/launch/process_tree.h"

#include <penstock/base/error.h>
#include <penstock/comm/launcher.h>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace penstock::comm {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr std::size_t kLastLines = 12;
constexpr std::chrono::milliseconds kTermTime{3000};  // between SIGTERM and SIGKILL
constexpr std::chrono::milliseconds kLauncherTick{100};
constexpr int kUnknownCode = 255;  // exit code of a child that other code in this process reaped

// The directory of the flight recorder dumps, removed at the end of the attempt.
struct TemporaryDirectory {
  TemporaryDirectory() {
    std::string pattern = (fs::temp_directory_path() / "penstock-flight-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw_storage_error("create the directory", pattern, errno);
    path = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  fs::path path;
};

void print_line(Rank rank, OutputStream stream, std::string_view line) {
  std::string text = str_cat("[", rank.value, "] ");
  text += line;
  if (!line.ends_with('\r')) text += '\n';  // a progress bar overwrites its line
  std::FILE* const file = stream == OutputStream::Err ? stderr : stdout;
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

// Whether a write to stdout failed because its reader exited, as in `penstock run ... | head`.
bool output_is_gone() {
  if (std::ferror(stdout) == 0) return false;
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

// One attempt: runs all ranks of this node to completion.
class Attempt {
 public:
  Attempt(const LaunchOptions& options, LaunchNodes& nodes, SignalCatcher& signals, const JobMark& mark,
          Guardian& guardian, int number, Clock::time_point deadline)
      : options_(options),
        nodes_(nodes),
        signals_(signals),
        mark_(mark),
        guardian_(guardian),
        number_(number),
        deadline_(deadline) {
    guardian_.add_directory(flight_.path);
  }

  // Ended ranks stay zombies until here: their pids, which are also the ids of their process groups, cannot
  // be reused before the groups are killed.
  ~Attempt() {
    kill_groups(SIGKILL);
    for (const Child& child : children_) {
      while (waitpid(child.process.pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
    guardian_.forget_groups();
    mark_.end_processes();  // processes that left their group
  }

  LaunchResult run() {
    start();
    while (alive() || output_open()) step();
    LaunchResult result;
    result.ok = !failed_ && !signal_ && !timed_out_;
    result.signal = signal_;
    result.timed_out = timed_out_;
    result.first_failure = first_failure_;
    result.cause = cause_;
    for (Child& child : children_) result.ranks.push_back(std::move(child.exit));
    if (!result.ok) result.flight = read_flight(result.ranks);
    return result;
  }

 private:
  struct Child {
    ChildProcess process;
    RankExit exit;
    bool ended = false;
    bool reaped = false;                       // by other code: its pid may have been reused
    std::optional<Clock::time_point> stopped;  // when a signal such as SIGSTOP stopped it; reset by SIGCONT
    bool bar = false;                          // its last line belongs to a progress bar
  };

  void start() {
    fs::path logs;
    if (options_.log_dir) {
      logs = *options_.log_dir / (str_cat("attempt", number_));
      std::error_code error;
      fs::create_directories(logs, error);
      if (error) throw_storage_error("create the directory", logs, error.value());
    }
    for (int local = 0; local < options_.ranks; ++local) {
      const int rank = nodes_.first_rank() + local;
      const std::string base = logs.empty() ? "" : (logs / str_cat("rank", rank)).string();
      Child child;
      child.process = start_child(options_.command, environment(rank, local), mark_.time_limit(),
                                  base.empty() ? "" : base + ".out", base.empty() ? "" : base + ".err");
      child.exit.rank = Rank(rank);
      child.exit.pid = child.process.pid;
      guardian_.add_group(child.process.pid);
      children_.push_back(std::move(child));
    }
    if (!options_.on_start) return;
    std::vector<pid_t> pids;
    for (const Child& child : children_) pids.push_back(child.process.pid);
    options_.on_start(pids);
  }

  std::map<std::string, std::string> environment(int rank, int local) const {
    std::map<std::string, std::string> all{
        {"RANK", std::to_string(rank)},
        {"LOCAL_RANK", std::to_string(local)},
        {"WORLD_SIZE", std::to_string(nodes_.world_size())},
        {"LOCAL_WORLD_SIZE", std::to_string(options_.ranks)},
        {"GROUP_RANK", std::to_string(options_.node_rank)},
        {"GROUP_WORLD_SIZE", std::to_string(options_.nodes)},
        {"ROLE_RANK", std::to_string(rank)},
        {"ROLE_WORLD_SIZE", std::to_string(nodes_.world_size())},
        {"ROLE_NAME", "default"},
        {"MASTER_ADDR", nodes_.host()},
        {"MASTER_PORT", std::to_string(nodes_.port())},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
        {"TORCHELASTIC_RESTART_COUNT", std::to_string(number_)},
        {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options_.max_restarts)},
        {"TORCHELASTIC_RUN_ID", "penstock"},
        {"PENSTOCK_FLIGHT_DIR", flight_.path.string()},
        {kSecretVariable, nodes_.secret().text()},
        mark_.variable()};
    if (std::getenv("OMP_NUM_THREADS") == nullptr && nodes_.world_size() > 1) all["OMP_NUM_THREADS"] = "1";
    for (const auto& [name, value] : options_.environment) all[name] = value;
    return all;
  }

  bool alive() const {
    return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return !child.ended; });
  }
  // A grandchild may keep the output open: stop reading one second after the last rank has ended.
  bool output_open() const {
    if (all_ended_ && Clock::now() - *all_ended_ > std::chrono::seconds(1)) return false;
    return std::any_of(children_.begin(), children_.end(),
                       [](const Child& child) { return child.process.out || child.process.err; });
  }

  void step() {
    std::vector<pollfd> waiting{{signals_.fd(), POLLIN, 0}};
    for (const Child& child : children_) {
      waiting.push_back({child.ended ? -1 : child.process.pidfd.get(), POLLIN, 0});
      waiting.push_back({child.process.out.get(), POLLIN, 0});
      waiting.push_back({child.process.err.get(), POLLIN, 0});
    }
    if (poll(waiting.data(), waiting.size(), static_cast<int>(kLauncherTick.count())) < 0) {
      // Try all of them; none blocks.
      for (pollfd& one : waiting) one.revents = POLLIN;
      if (errno != EINTR) std::this_thread::sleep_for(kLauncherTick);
    }
    while (const int number = signals_.next()) pass_on(number);
    for (std::size_t i = 0; i < children_.size(); ++i) {
      Child& child = children_[i];
      if (waiting[i * 3 + 2].revents != 0)
        carry(child, child.process.out, child.process.out_lines, OutputStream::Out);
      if (waiting[i * 3 + 3].revents != 0)
        carry(child, child.process.err, child.process.err_lines, OutputStream::Err);
      if (!child.ended) look_whether_ended(child);  // does not rely on the pidfd, which may be missing
    }
    if (!signal_ && options_.pass_signals && output_is_gone()) {
      signal_ = SIGPIPE;
      kill_groups(SIGTERM);
      stop(options_.grace);
    }
    for (Child& child : children_) look_whether_stopped(child);
    if (!alive() && !all_ended_) all_ended_ = Clock::now();
    look_at_other_nodes();
    look_at_descriptors();
    if (!is_ending() && Clock::now() > deadline_) {
      timed_out_ = true;
      stop(std::chrono::milliseconds(0));
    }
    end_stragglers();
  }

  void carry(Child& child, Fd& fd, LineReader& reader, OutputStream stream) {
    if (!fd) return;
    const bool more = reader.read(fd.get(), [&](std::string_view line) {
      keep(child, line);
      if (options_.on_line) {
        options_.on_line(child.exit.rank, stream, line);
      } else {
        print_line(child.exit.rank, stream, line);
      }
    });
    if (!more) fd.reset();
  }

  // Keeps the last lines; a progress bar counts as one.
  static void keep(Child& child, std::string_view line) {
    std::vector<std::string>& last = child.exit.last_lines;
    if (child.bar && !last.empty()) last.pop_back();
    child.bar = line.ends_with('\r');
    if (child.bar) line.remove_suffix(1);
    last.emplace_back(line.substr(0, 2000));
    if (last.size() > kLastLines) last.erase(last.begin());
  }

  void look_whether_ended(Child& child) {
    siginfo_t info{};
    const int found = waitid(P_PID, static_cast<id_t>(child.process.pid), &info, WEXITED | WNOHANG | WNOWAIT);
    if (found != 0 && errno != ECHILD) return;
    if (found == 0 && info.si_pid == 0) return;
    child.ended = true;
    child.exit.seconds = std::chrono::duration<double>(Clock::now() - started_).count();
    if (found != 0) {
      child.reaped = true;
      child.exit.code = kUnknownCode;
    } else if (info.si_code == CLD_EXITED) {
      child.exit.code = info.si_status;
    } else {
      child.exit.signal = info.si_status;
    }
    child.exit.ended_by_launcher = ended_by_us_;
    if (child.exit.ok() || failed_) return;
    Failure failure{child.exit.rank, "its process " + to_string(child.exit)};
    if (!child.exit.signal) failure = find_root_cause(std::move(failure));
    nodes_.publish_death(number_, failure);
    fail(failure.rank);
  }

  // Returns the root cause: a rank that failed because of another rank must not be named.
  Failure find_root_cause(Failure failure) {
    // Reported by a rank, or by the launcher of another node.
    for (const auto& known : {nodes_.reported_failure(number_), nodes_.published_death(number_)}) {
      if (!known || known->rank == failure.rank) continue;
      cause_ = known->cause;
      return *known;
    }
    if (!nodes_.gone().empty()) {
      cause_ = nodes_.gone();
      return {std::nullopt, cause_};
    }
    return failure;
  }

  // The other ranks notice a stopped rank only after it has joined them; the launcher notices it earlier.
  void look_whether_stopped(Child& child) {
    if (child.ended || is_ending()) return;
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(child.process.pid), &info, WSTOPPED | WCONTINUED | WNOHANG) == 0 &&
        info.si_pid != 0) {
      if (info.si_code == CLD_STOPPED) child.stopped = Clock::now();
      if (info.si_code == CLD_CONTINUED) child.stopped.reset();
    }
    if (!child.stopped || Clock::now() - *child.stopped < silence_limit_) return;
    cause_ = "it was stopped and did not continue for " + format_seconds(silence_limit_);
    nodes_.publish_death(number_, {child.exit.rank, cause_});
    fail(child.exit.rank);
  }

  void look_at_other_nodes() {
    if (options_.nodes == 1 || Clock::now() - last_look_ < std::chrono::milliseconds(500)) return;
    last_look_ = Clock::now();
    const auto gone = nodes_.beat();
    if (failed_ || !alive()) return;
    if (gone) nodes_.publish_death(number_, *gone);
    auto known = nodes_.published_death(number_);
    if (!known) known = gone;
    if (!known) return;
    cause_ = known->cause;
    fail(known->rank);
  }

  // Without descriptors, ranks cannot connect to the store of this launcher and would retry for minutes.
  void look_at_descriptors() {
    if (is_ending() || !out_of_descriptors()) return;
    cause_ =
        "the launcher has too few file descriptors for the ranks' connections to its store; raise the limit, "
        "for example with `ulimit -n 4096`";
    nodes_.publish_death(number_, {std::nullopt, cause_});
    fail(std::nullopt);
  }

  void pass_on(int number) {
    if (signal_) {  // second signal: kill immediately
      kill_groups(SIGKILL);
      return;
    }
    signal_ = number;
    if (options_.graceful_stop && (number == SIGINT || number == SIGTERM)) {
      notify(options_, "stopping: the ranks finish their step; a second signal stops them at once");
      kill_groups(SIGINT);
      stop(std::nullopt);
      return;
    }
    kill_groups(number);
    stop(options_.grace);
  }

  void fail(std::optional<Rank> first) {
    failed_ = true;
    first_failure_ = first;
    stop(options_.grace);
  }

  // Whether the ranks are about to be terminated.
  bool is_ending() const { return stopping_ && terminate_at_ != Clock::time_point::max(); }

  // Without a grace period, the ranks end by themselves, unless one of them fails.
  void stop(std::optional<std::chrono::milliseconds> grace) {
    if (stopping_ && terminate_at_ != Clock::time_point::max()) return;
    stopping_ = true;
    terminate_at_ = grace ? Clock::now() + *grace : Clock::time_point::max();
  }

  void end_stragglers() {
    if (!stopping_ || !alive()) return;
    const auto now = Clock::now();
    if (now >= terminate_at_ && !termed_) {
      termed_ = ended_by_us_ = true;
      kill_groups(SIGTERM);
    }
    if (termed_ && now >= terminate_at_ + kTermTime) kill_groups(SIGKILL);
  }

  // Signals the ranks and the processes that they started, even if the rank itself has ended.
  void kill_groups(int number) {
    for (const Child& child : children_) {
      if (!child.reaped) kill(-child.process.pid, number);
    }
  }

  std::vector<std::string> read_flight(const std::vector<RankExit>& ranks) const {
    std::vector<std::string> dumps;
    std::vector<Rank> silent;
    for (const RankExit& exit : ranks) {
      std::ifstream file(flight_.path / str_cat("rank", exit.rank.value, ".json"));
      if (file) {
        std::ostringstream text;
        text << file.rdbuf();
        dumps.push_back(text.str());
      } else if (!exit.ok()) {
        silent.push_back(exit.rank);
      }
    }
    return dumps.empty() ? std::vector<std::string>{} : explain_flight(dumps, silent);
  }

  const LaunchOptions& options_;
  LaunchNodes& nodes_;
  SignalCatcher& signals_;
  const JobMark& mark_;
  Guardian& guardian_;
  int number_;
  Clock::time_point deadline_;
  TemporaryDirectory flight_;
  std::chrono::milliseconds silence_limit_ = heartbeat_limit();
  std::vector<Child> children_;
  Clock::time_point started_ = Clock::now();
  Clock::time_point last_look_ = Clock::now();
  std::optional<Clock::time_point> all_ended_;
  bool failed_ = false;
  std::optional<Rank> first_failure_;
  std::string cause_;
  std::optional<int> signal_;
  bool timed_out_ = false;
  bool stopping_ = false;
  bool termed_ = false;
  bool ended_by_us_ = false;
  Clock::time_point terminate_at_;
};

}  // namespace

LaunchResult launch(const LaunchOptions& options) {
  if (options.command.empty())
    throw UsageError("there is no program to run", {}, "set `command` to the program and its arguments");
  if (options.ranks < 1)
    throw UsageError(str_cat("a job needs at least one rank, not ", options.ranks), {},
                     "set `ranks` to 1 or more");
  if (options.nodes < 1 || options.node_rank < 0 || options.node_rank >= options.nodes) {
    throw UsageError(
        str_cat("node rank ", options.node_rank, " is out of range; the number of nodes is ", options.nodes),
        {}, "number the nodes from 0");
  }
  if (options.nodes > 1 && !options.port)
    throw UsageError("a job on several nodes requires a rendezvous port", {},
                     "set `port` to the same free port on every node");
  const auto deadline = options.deadline ? Clock::now() + *options.deadline : Clock::time_point::max();
  raise_descriptor_limit();
  // Per rank: two output pipes, a pidfd, and its connections to the store. Fixed: the store and temporary
  // pipes.
  require_descriptors(24 + 6 * options.ranks, str_cat("a launcher of ", options.ranks, " ranks"));
  const QuietSignals quiet;
  const JobMark mark("job-" + JobSecret::random().text());
  Guardian guardian(mark);
  LaunchNodes nodes(options);  // before SignalCatcher: signals must still end the wait for other nodes
  SignalCatcher signals(options.pass_signals);
  for (int number = 0;; ++number) {
    LaunchResult result = Attempt(options, nodes, signals, mark, guardian, number, deadline).run();
    result.restarts = number;
    const bool well = nodes.all_ended_well(number, result.ok);
    if (result.ok && !well) {
      result.ok = false;
      if (!nodes.gone().empty()) {
        result.cause = nodes.gone();
      } else if (const auto failure = nodes.published_death(number)) {
        result.first_failure = failure->rank;
        result.cause = failure->cause;
      }
    }
    if (result.ok || number >= options.max_restarts || result.signal || result.timed_out) return result;
    if (!nodes.gone().empty()) {
      notify(options, "not restarting: " + nodes.gone());
      return result;
    }
    if (options.on_restart) {
      options.on_restart(result);
      continue;
    }
    notify(options,
           str_cat(to_string(result), "restarting (", number + 1, " of ", options.max_restarts, ")"));
  }
}

}  // namespace penstock::comm
