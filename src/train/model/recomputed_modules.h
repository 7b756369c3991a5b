// Which modules of a model are recomputed.
#pragma once

#include <string>
#include <vector>

namespace penstock::train {

//! Returns the paths that a pattern matches, without those inside of another match.
std::vector<std::string> matching_modules(const std::vector<std::string>& patterns,
                                          const std::vector<std::string>& paths);

//! The same. Throws UsageError, with the closest path, if a pattern matches none.
std::vector<std::string> recomputed_modules(const std::vector<std::string>& patterns,
                                            const std::vector<std::string>& paths);

}  // namespace penstock::train
