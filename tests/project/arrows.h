// The allowed dependencies between modules, as drawn in docs/architecture.md.
#pragma once

#include <map>
#include <set>
#include <string>

namespace penstock::test {

//! For each module, all modules that it may include, including itself: the transitive closure of the arrows.
using Reach = std::map<std::string, std::set<std::string>>;

//! Reads lines of `A <- B <- C` and `{A, B} <- C`. Throws if they contain a cycle.
Reach read_arrows(const std::string& block);

//! The text of the ```arrows block of a document.
std::string arrows_block(const std::string& document);

}  // namespace penstock::test
