// Parses and triggers injected faults.
#include "train/rank/fault.h"

#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/train/trainer.h>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace penstock::tool {
namespace {

FaultKind kind_of(const std::string& token) {
  if (token == "throw") return FaultKind::Throw;
  if (token == "exit") return FaultKind::Exit;
  if (token == "kill") return FaultKind::Kill;
  if (token == "stop") return FaultKind::Stop;
  if (token == "stall") return FaultKind::Stall;
  if (token == "cut") return FaultKind::Disconnect;
  if (token == "nan") return FaultKind::Nan;
  throw UsageError("PENSTOCK_FAULT: " + quote(token) + " is not a known fault", {},
                   "use throw, exit, kill, stop, stall, cut or nan");
}

std::int64_t number_of(const std::string& token, const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0)
    throw UsageError("PENSTOCK_FAULT: " + quote(token) + " does not contain a number");
  return number;
}

Fault parse_fault(const std::string& text) {
  std::istringstream tokens(text);
  std::string token;
  tokens >> token;
  Fault fault{.kind = kind_of(token)};
  while (tokens >> token) {
    const auto equals = token.find('=');
    const std::string key = token.substr(0, equals),
                      value = equals == std::string::npos ? "" : token.substr(equals + 1);
    if (key == "rank") {
      fault.rank = Rank(number_of(token, value));
    } else if (key == "step") {
      fault.step = number_of(token, value);
    } else if (key == "attempt") {
      fault.attempt = static_cast<int>(number_of(token, value));
    } else if ((key == "at" || key == "action") && !value.empty()) {
      fault.point = value;
    } else {
      throw UsageError("PENSTOCK_FAULT: unknown key " + quote(token), {},
                       "use rank=, step=, action=, at= or attempt=");
    }
  }
  return fault;
}

// Shuts down all connections while they are in use, like a network failure. The process keeps running.
void shut_down_connections() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    int listens = 0;  // skip listening sockets: Gloo aborts the process if one breaks
    socklen_t size = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens == 0)
      shutdown(fd, SHUT_RDWR);
  }
}

void execute(const Fault& fault, std::optional<std::int64_t> step, std::string_view point) {
  switch (fault.kind) {
    case FaultKind::Throw:
      throw Error("injected fault" + (step ? str_cat(" in step ", *step) : "") + " at " + std::string(point));
    case FaultKind::Exit:
      _exit(3);
    case FaultKind::Kill:
      std::raise(SIGKILL);
      return;
    case FaultKind::Stop:
      std::raise(SIGSTOP);
      return;
    case FaultKind::Stall:
      while (true) pause();
    case FaultKind::Disconnect:
      return shut_down_connections();
    case FaultKind::Nan:
      return;
  }
}

}  // namespace

std::vector<Fault> parse_faults(std::string_view text) {
  std::vector<Fault> faults;
  std::istringstream parts{std::string(text)};
  for (std::string part; std::getline(parts, part, ';');) {
    if (part.find_first_not_of(' ') != std::string::npos) faults.push_back(parse_fault(part));
  }
  return faults;
}

Faults Faults::from_environment(Rank rank) {
  Faults faults;
  const char* const text = std::getenv("PENSTOCK_FAULT");
  if (text == nullptr) return faults;
  for (Fault& fault : parse_faults(text))
    if (fault.rank == rank && fault.attempt == train::restart_count())
      faults.faults_.push_back(std::move(fault));
  return faults;
}

bool Faults::has_action(schedule::ActionKind kind) const {
  return std::any_of(faults_.begin(), faults_.end(), [kind](const Fault& fault) {
    return fault.point.find(to_string(kind)) != std::string::npos;
  });
}

bool Faults::trigger(std::optional<std::int64_t> step, std::string_view point) {
  for (std::size_t i = 0; i < faults_.size(); ++i) {
    if (faults_[i].point != point || (faults_[i].step && *faults_[i].step != step.value_or(0))) continue;
    const Fault fault = faults_[i];
    faults_.erase(faults_.begin() + static_cast<std::ptrdiff_t>(i));  // each fault occurs once
    execute(fault, step, point);
    return fault.kind == FaultKind::Nan;
  }
  return false;
}

}  // namespace penstock::tool
