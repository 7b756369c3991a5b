// A small logger to stderr. Off by default; PENSTOCK_LOG=error|warn|info|debug|trace turns it on. Lines carry the
// rank, once it is known, and are written whole, so that the lines of several ranks do not mix.
#pragma once

#include <penstock/base/ids.h>

#include <optional>
#include <sstream>
#include <string>
#include <string_view>

namespace penstock {

enum class LogLevel { Off, Error, Warn, Info, Debug, Trace };

//! Reads a level's name; nothing if it is none.
std::optional<LogLevel> parse_log_level(std::string_view name);

//! The level in force: PENSTOCK_LOG's, until `set_log_level` is called.
LogLevel log_level();
void set_log_level(LogLevel level);

//! The rank that the calling thread's lines are prefixed with (threads may be ranks).
void set_log_rank(std::optional<Rank> rank);
std::optional<Rank> log_rank();

//! Writes `penstock[rank] level: text`, if `level` is on.
void log_line(LogLevel level, const std::string& text);

//! Collects one line: `Log(LogLevel::Info) << "joined after " << seconds << " s";`
class Log {
 public:
  explicit Log(LogLevel level) : level_(level), on_(level <= log_level()) {}
  ~Log() {
    if (on_) log_line(level_, text_.str());
  }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  template <class T>
  Log& operator<<(const T& value) {
    if (on_) text_ << value;
    return *this;
  }

 private:
  LogLevel level_;
  bool on_;
  std::ostringstream text_;
};

}  // namespace penstock
