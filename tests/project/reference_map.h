// Parser for docs/reference-map.md, which maps each name of torch.distributed to its Penstock counterpart.
#pragma once

#include <string>
#include <vector>

namespace penstock::test {

//! An entity of Penstock that a row names: `flatten_args` in `penstock/value/tree.h`.
struct PenstockName {
  std::string name;
  std::string file;
};

struct ReferenceRow {
  std::string file;    //!< the reference's file, from the section title
  std::string name;    //!< the reference's class or function
  std::string status;  //!< `done` or `not needed`
  std::vector<PenstockName> entities;
  std::vector<std::string> tests;  //!< `Suite.Case`
  std::string last;                //!< text of the last column: tests, or the reason
  int line = 0;
};

//! Sections start with `## file`; rows are `| name | status | Penstock | test or reason |`. Throws if a row
//! is malformed.
std::vector<ReferenceRow> read_reference_map(const std::string& document);

}  // namespace penstock::test
