// Writes lines of the log. Each line shows the rank, once known, and is one write call, so lines of different
// ranks do not interleave.
#pragma once

#include <penstock/base/ids.h>
#include <penstock/base/log.h>

#include <optional>
#include <sstream>
#include <string>

namespace penstock {

//! The rank in the prefix of the calling thread's lines; per thread, because ranks may be threads.
void set_log_rank(std::optional<Rank> rank);
std::optional<Rank> log_rank();
//! The rank of a thread that has none of its own, such as autograd's thread of a device.
void set_log_rank_source(std::optional<Rank> (*source)());

//! Writes `penstock[rank] level: text` if `level` is enabled.
void log_line(LogLevel level, const std::string& text);
//! Writes a line of level `info` that users should see once: also if nobody chose a level.
void log_notice(const std::string& text);

//! Builds one line and writes it on destruction: `Log(LogLevel::Info) << "joined after " << seconds << " s";`
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
