// docs/seed-map.md as data: for each name of the reference, what serves its purpose here.
#pragma once

#include <string>
#include <vector>

namespace penstock::test {

//! One of ours that a row names: `flatten_args` in `penstock/value/tree.h`.
struct OurName {
  std::string name;
  std::string header;
};

struct SeedRow {
  std::string file;    //!< the reference's, from the section's title
  std::string name;    //!< the reference's
  std::string status;  //!< `done`, `not needed` or `issue N`
  std::vector<OurName> ours;
  std::vector<std::string> tests;  //!< `Suite.Case`
  std::string last;                //!< the last column whole: tests, or the reason
  int line = 0;
};

//! Sections are `## file`; rows `| name | status | ours | test or reason |`. Throws at a row of another form.
std::vector<SeedRow> read_seed_map(const std::string& document);

}  // namespace penstock::test
