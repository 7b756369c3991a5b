// Parses TOML from untrusted files: toml++ with limits on the nesting of tables, because their destructors
// recurse.
#pragma once

#define TOML_ENABLE_FORMATTERS 0
#define TOML_ENABLE_UNRELEASED_FEATURES 0
#define TOML_MAX_NESTED_VALUES 32

#include <toml++/toml.h>

#include <string>
#include <string_view>

namespace penstock::tool {

//! Maximum number of parts of a key (`a.b.c`). The files of this project use at most two.
inline constexpr int kMaxKeyParts = 16;

//! Throws toml::parse_error for invalid TOML and for lists nested too deeply. Throws ParseError, with the
//! line, for keys with too many parts and for non-ASCII characters outside of comments and single-line
//! strings.
toml::table parse_toml(const std::string& text);

//! `line 3, column 1`
std::string position_text(const toml::source_position& at);

}  // namespace penstock::tool
