// Rules that map the names of stored tensors to those of a model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::checkpoint {

//! Replaces a path at the start of a name: `from` is the path of a tensor or module, `to` its new path. `*`
//! matches within one component; the n-th `*` of `to` stands for the text that the n-th `*` of `from`
//! matched. `transformer.h.*` to `blocks.*` renames `transformer.h.3.norm.weight` to `blocks.3.norm.weight`.
//! An empty `to` removes the path; an empty `from` adds `to` in front of every name.
struct RenameRule {
  std::string from, to;
};

//! Parses `FROM=TO`. Throws UsageError if there is no `=`, both are empty, or `to` has more `*` than `from`.
RenameRule parse_rename_rule(std::string_view text);

//! Applies the rules in order, each to the result of the previous one. Adds 1 to the element of `uses` of
//! every rule that matched; `uses` has one element per rule.
std::string renamed(std::string name, const std::vector<RenameRule>& rules, std::vector<int>& uses);

}  // namespace penstock::checkpoint
