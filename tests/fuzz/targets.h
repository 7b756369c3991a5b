// What the fuzzers do with one input: each target reads it with one parser and holds the library to its
// promises. clang's libFuzzer drives them (`./dev fuzz`); ordinary tests replay their corpora, with random
// edits and with allocations that fail.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::fuzz {

struct Target {
  const char* name;
  //! Returns what is wrong, or null. An Error says that the input is refused, which is fine; any other
  //! exception, a crash or a sanitizer's report is not.
  const char* (*check)(std::string_view bytes);
  //! Inputs besides those in tests/fuzz/corpus/NAME, made from files of other tests; may be null.
  std::vector<std::string> (*seeds)();
  //! Words that mean something to the parser, separated by spaces, for random edits.
  const char* words;
  //! Whether allocations may fail while this input is read; null if they may for all inputs.
  bool (*may_run_out_of_memory)(std::string_view bytes) = nullptr;
};

//! Those of this program: of the torch-free half, or of the half on libtorch.
std::span<const Target> targets();

//! All inputs that are known for a target: its corpus, then its seeds.
std::vector<std::string> inputs_of(const Target& target);

//! Runs a target's check. Returns what is wrong, or null if nothing is or the input is refused.
const char* problem_with(const Target& target, std::string_view bytes);

std::string file_content(const std::string& path);

const char* check_csv(std::string_view bytes);

}  // namespace penstock::fuzz
