// Slurm's compressed lists of host names, such as `node[01-03,7],gpu1`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::comm {

//! Returns the hosts in the order of the list. An item may have several brackets (`rack[0-1]n[1-4]`, where
//! the last one varies fastest) and text after them. Numbers keep the width of the start of their range.
//! Throws UsageError if the text is not a list, names more than 65536 hosts, or has a name of more than about
//! 255 bytes.
std::vector<std::string> expand_node_list(std::string_view text);

}  // namespace penstock::comm
