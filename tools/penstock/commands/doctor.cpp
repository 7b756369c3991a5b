// `penstock doctor`: checks this machine for everything a run needs, including a message round trip between
// two ranks. `--report` writes a text for bug reports.
#include "base/json.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "commands/commands.h"
#include "commands/doctor_findings.h"
#include "commands/launching.h"

#include <penstock/base/error.h>
#include <penstock/comm/launched_rank.h>
#include <penstock/comm/world.h>
#include <penstock/version.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::tool {
namespace {

Finding look_at_processors() {
  const unsigned cores = std::thread::hardware_concurrency();
  const auto pages = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES));
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE));
  return {"machine", CheckVerdict::Fine,
          str_cat(cores, " cores, ", format_bytes(pages * page), " of memory, libtorch uses ",
                  at::get_num_threads(), " threads")};
}

//! Whether ranks of one user may read each other's memory: the Yama security module can forbid it.
bool memory_is_readable() {
  int scope = 0;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  return scope == 0;
}

Finding look_at_shared_memory() {
  constexpr const char* name = "shared memory";
  struct statvfs state {};
  if (statvfs("/dev/shm", &state) != 0)
    return {name, CheckVerdict::Note, "there is no /dev/shm; the ranks of a host use gloo"};
  const std::uint64_t free = static_cast<std::uint64_t>(state.f_bavail) * state.f_frsize;
  const std::string space = format_bytes(free) + " free in /dev/shm";
  if (access("/dev/shm", W_OK) != 0)
    return {name, CheckVerdict::Note, space + ", not writable; the ranks of a host use gloo"};
  constexpr std::uint64_t enough = 64U << 20U;  // for 64 ranks
  if (free < enough)
    return {name, CheckVerdict::Note,
            space +
                "; if that is too little for the ranks of a host, they use gloo (docker run --shm-size "
                "enlarges it)"};
  return {name, CheckVerdict::Fine,
          space + (memory_is_readable() ? "; ranks read large tensors from each other's memory"
                                        : "; large tensors are copied through it, because "
                                          "kernel.yama.ptrace_scope forbids reading other processes")};
}

Finding look_at_clocks() {
  using Clock = std::chrono::steady_clock;
  double finest = 1;
  for (int i = 0; i < 1000; ++i) {
    const auto start = Clock::now();
    auto now = start;
    while (now == start) now = Clock::now();
    finest = std::min(finest, std::chrono::duration<double>(now - start).count());
  }
  return {"clocks", finest < 1e-5 ? CheckVerdict::Fine : CheckVerdict::Note,
          "steady clock ticks every " + format_seconds(finest)};
}

Finding look_at_launcher() {
  try {
    const comm::LaunchedRank found = comm::detect_rank();
    const bool is_shell = found.launcher == comm::LauncherKind::None && found.allocated_tasks > 1;
    return {"launcher", is_shell ? CheckVerdict::Note : CheckVerdict::Fine,
            to_string(found) + (is_shell ? "; start programs with srun or penstock run" : "")};
  } catch (const UsageError& error) {
    return {"launcher", CheckVerdict::Bad, error.message() + "; " + error.hint()};
  }
}

// Runs on each rank of the round trip. Rank 0 prints the results.
int round_trip_rank() {
  comm::World world = comm::init({.device = usable_devices() > 1 ? c10::kCUDA : c10::kCPU});
  const comm::Group& group = world.group();
  const auto round_trips = [&](std::int64_t elements, int count) {
    const at::Tensor tensor = at::ones({elements}, world.device());
    group.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) {
      if (group.rank() == 0) group.send(tensor, 1);
      group.recv(tensor, 1 - group.rank());
      if (group.rank() == 1) group.send(tensor, 0);
    }
    tensor.select(0, 0).item<float>();  // waits for the device
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / count;
  };
  round_trips(1, 20);
  const double latency = round_trips(1, 200) / 2;
  constexpr std::int64_t elements = 4 << 20;
  const double rate = 2.0 * elements * sizeof(float) / round_trips(elements, 5);
  if (group.rank() == 0) {
    print("2 ranks over " + group.backend() + ": " + format_seconds(latency) + " per message, " +
          format_bytes(static_cast<std::uint64_t>(rate)) + "/s\n");
  }
  return 0;
}

Finding try_round_trip() {
  comm::LaunchOptions options = ranks_of("doctor", 2, {});
  options.deadline = std::chrono::seconds(60);
  std::string line, all;
  options.on_line = [&](Rank rank, comm::OutputStream stream, std::string_view text) {
    if (rank == Rank(0) && stream == comm::OutputStream::Out) line = text;
    all += std::string(text) + "\n";
  };
  const comm::LaunchResult result = launch(options);
  if (result.ok) return {"round trip", CheckVerdict::Fine, line};
  return {"round trip", CheckVerdict::Bad, to_string(result) + all};
}

}  // namespace

int doctor_command(Arguments& arguments) {
  std::optional<std::string> report;
  arguments.option("--report", report, "also write a text file for bug reports, without secrets: doctor.txt");
  arguments.parse();
  if (is_rank_of("doctor")) return round_trip_rank();
  std::vector<Finding> findings{{"penstock", CheckVerdict::Fine, version()}, look_at_libtorch()};
  for (Finding& finding : look_at_devices()) findings.push_back(std::move(finding));
  for (const auto& look :
       {look_at_processors, look_at_shared_memory, look_at_clocks, look_at_launcher, try_round_trip})
    findings.push_back(look());
  bool healthy = true;
  JsonWriter json;
  json.begin_object().key("findings").begin_array();
  for (const Finding& finding : findings) {
    healthy = healthy && finding.verdict != CheckVerdict::Bad;
    json.begin_object().field("what", finding.what).field("verdict", verdict_name(finding.verdict));
    json.field("text", finding.text).end_object();
    if (!arguments.json()) print(to_string(finding) + "\n");
  }
  json.end_array().field("ok", healthy).end_object();
  if (arguments.json()) print(json.text() + "\n");
  if (report) {
    write_output(*report, doctor_report(findings));
    if (!arguments.json()) print("\nthe report is in " + *report + "; read it before you publish it\n");
  }
  return healthy ? 0 : 1;
}

}  // namespace penstock::tool
