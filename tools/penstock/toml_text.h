// TOML that may hold anything: toml++ with bounds on the nesting of its tables, whose destruction recurses.
#pragma once

#define TOML_ENABLE_FORMATTERS 0
#define TOML_ENABLE_UNRELEASED_FEATURES 0
#define TOML_MAX_NESTED_VALUES 32

#include <toml++/toml.h>

#include <string>
#include <string_view>

namespace penstock::tool {

//! The parts that a key (`a.b.c`) may have; our files have keys of two.
inline constexpr int most_key_parts = 16;

//! toml::parse_error for what is no TOML or has lists nested too deep; ParseError with the line for keys of
//! too many parts and for characters beyond ASCII outside of comments and strings of one line.
toml::table parse_toml(const std::string& text);

//! `line 3, column 1`
std::string place_text(const toml::source_position& at);

}  // namespace penstock::tool
