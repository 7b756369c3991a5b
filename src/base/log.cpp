// The logger: one write per line, level from the environment.
#include "base/log_line.h"
#include "base/text.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>

namespace penstock {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"off", "error", "warn", "info", "debug", "trace"};

std::atomic<bool> level_is_chosen{false};

LogLevel level_from_environment() {
  const char* name = std::getenv("PENSTOCK_LOG");
  if (name == nullptr || *name == '\0') return LogLevel::Off;
  level_is_chosen = true;
  if (const auto level = try_parse_log_level(name)) return *level;
  const std::string text = std::string("penstock warn: PENSTOCK_LOG=") + name +
                           " is not a log level (off, error, warn, info, debug, trace); logging stays off\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), text.size());
  return LogLevel::Off;
}

std::atomic<LogLevel>& level() {
  static std::atomic<LogLevel> value{level_from_environment()};
  return value;
}

void write_line(LogLevel line_level, const std::string& text) {
  std::string line = "penstock";
  if (const std::optional<Rank> rank = log_rank()) line += str_cat("[", rank->value, "]");
  line += " " + std::string(to_string(line_level)) + ": " + text + "\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
}

thread_local std::optional<Rank> this_rank;
std::atomic<std::optional<Rank> (*)()> rank_source{nullptr};

}  // namespace

std::optional<LogLevel> try_parse_log_level(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

std::string_view to_string(LogLevel value) {
  return kNames[static_cast<std::size_t>(value)];
}

LogLevel log_level() {
  return level().load(std::memory_order_relaxed);
}
void set_log_level(LogLevel value) {
  level_is_chosen = true;
  level().store(value, std::memory_order_relaxed);
}

void set_log_rank(std::optional<Rank> rank) {
  this_rank = rank;
}
std::optional<Rank> log_rank() {
  if (this_rank) return this_rank;
  const auto source = rank_source.load(std::memory_order_relaxed);
  return source != nullptr ? source() : std::nullopt;
}
void set_log_rank_source(std::optional<Rank> (*source)()) {
  rank_source.store(source, std::memory_order_relaxed);
}

void log_line(LogLevel line_level, const std::string& text) {
  if (line_level != LogLevel::Off && line_level <= log_level()) write_line(line_level, text);
}

void log_notice(const std::string& text) {
  if (log_level() >= LogLevel::Info || !level_is_chosen) write_line(LogLevel::Info, text);
}

}  // namespace penstock
