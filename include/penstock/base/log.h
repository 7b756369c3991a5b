// The level of the library's log on stderr. Off by default, except for one line of rank 0 that names the
// cluster launcher that `init()` found. The environment variable PENSTOCK_LOG=off|error|warn|info|debug|trace
// or `set_log_level` chooses the level.
#pragma once

#include <optional>
#include <string_view>

namespace penstock {

//! Each level includes those before it.
enum class LogLevel { Off, Error, Warn, Info, Debug, Trace };

//! Parses the name of a level; nullopt if it is unknown.
std::optional<LogLevel> try_parse_log_level(std::string_view name);
std::string_view to_string(LogLevel level);

//! The current level: from PENSTOCK_LOG, unless `set_log_level` overrides it.
LogLevel log_level();
//! Sets the level for the whole process.
void set_log_level(LogLevel level);

}  // namespace penstock
