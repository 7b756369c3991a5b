// Fuzz targets: each reads one input with one parser and checks the guarantees of the library. clang's
// libFuzzer drives them (`./dev fuzz`); tests replay their corpora with random edits and with failing
// allocations.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::fuzz {

struct Target {
  const char* name;
  //! Returns the violated guarantee, or null. An Error means that the input is rejected, which is allowed;
  //! any other exception, a crash or a sanitizer report is a bug.
  const char* (*check)(std::string_view bytes);
  //! Inputs in addition to tests/fuzz/corpus/NAME, derived from files of other tests; may be null.
  std::vector<std::string> (*seeds)();
  //! Words with a meaning for the parser, separated by spaces, for random edits.
  const char* words;
  //! Whether allocations may fail while this input is read; null means always.
  bool (*may_run_out_of_memory)(std::string_view bytes) = nullptr;
};

//! The targets of this program: those for the torch-free half, or those for the libtorch half.
std::span<const Target> targets();

//! All known inputs of a target: its corpus, then its seeds.
std::vector<std::string> inputs_of(const Target& target);

//! Runs the check of a target. Returns the violated guarantee, or null if there is none or the input is
//! rejected.
const char* problem_with(const Target& target, std::string_view bytes);

std::string file_content(const std::string& path);

const char* check_csv(std::string_view bytes);

}  // namespace penstock::fuzz
