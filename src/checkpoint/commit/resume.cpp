// Lists the checkpoints in a directory and finds the one to resume from.
#include "base/text.h"
#include "checkpoint/commit/files.h"
#include "checkpoint/commit/open_checkpoint.h"

#include <penstock/checkpoint/checkpoint.h>

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <functional>

namespace penstock::checkpoint {
namespace {

constexpr std::string_view kStepPrefix = "step-";

//! Parses the name of a checkpoint directory; nullopt if it is not one.
std::optional<CheckpointLocation> try_parse_location(const std::string& directory, const std::string& name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  CheckpointLocation location{.path = directory + "/" + name};
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kStepPrefix.size(), end, location.step);
  if (error != std::errc{} || location.step < 0) return std::nullopt;
  location.complete = rest == end;
  const std::string_view tail(rest, static_cast<std::size_t>(end - rest));
  if (!location.complete && tail != ".incomplete") return std::nullopt;
  return location;
}

//! Returns why a checkpoint is unusable; empty if it is intact. Verifies part `part` of `parts` of its
//! files.
std::string fault_of(const CheckpointLocation& location, std::size_t part, std::size_t parts) {
  if (!location.complete) return "its write did not complete";
  try {
    const Checkpoint checkpoint(location.path);
    for (std::size_t i = part; i < checkpoint.files().size(); i += parts) {
      const Diagnostics found = checkpoint.verify_file(i);
      if (!found.empty()) return found[0].where + " " + found[0].message;
    }
    return {};
  } catch (const Error& error) {
    return error.message();
  }
}

//! `agree` returns, on every rank, the first problem that any rank has found.
ResumePoint find_with(const std::string& directory, std::size_t part, std::size_t parts,
                      const std::function<std::string(std::string)>& agree,
                      const std::function<std::string(std::string)>& first) {
  // All ranks use the list of the first rank, because the directory may be changing.
  std::string names, error;
  try {
    for (const CheckpointLocation& location : list_checkpoints(directory))
      names = location.path.string() + "\n" + names;
  } catch (const StorageError& failure) {
    if (failure.code() != ENOENT) error = failure.message();
  }
  names = first(error.empty() ? names : "!" + error);
  if (names.starts_with('!')) throw CheckpointError(names.substr(1));
  std::vector<std::string> passed;
  for (std::size_t begin = 0, end = 0; (end = names.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    const std::string path = names.substr(begin, end - begin);
    const std::string name = path.substr(path.rfind('/') + 1);
    const std::string fault = agree(fault_of(try_parse_location(directory, name).value(), part, parts));
    if (fault.empty()) return {Checkpoint(path), passed};
    passed.push_back(name + ": " + fault);
  }
  std::string message = "there is no complete checkpoint in " + quote(directory, 200);
  if (!passed.empty()) message += "; skipped:\n  " + join(passed, "\n  ");
  throw CheckpointError(message, {},
                        "start a new run, or use the directory that contains the checkpoints of the run");
}

}  // namespace

std::vector<CheckpointLocation> list_checkpoints(const std::filesystem::path& directory) {
  std::vector<CheckpointLocation> locations;
  for (const std::string& name : list_directory(directory)) {
    if (auto location = try_parse_location(directory, name)) locations.push_back(std::move(*location));
  }
  std::sort(locations.begin(), locations.end(), [](const CheckpointLocation& a, const CheckpointLocation& b) {
    // If a step has a complete and an incomplete checkpoint, the incomplete one is newer.
    return std::tuple(a.step, !a.complete) < std::tuple(b.step, !b.complete);
  });
  return locations;
}

ResumePoint find_resume_point(const std::filesystem::path& directory) {
  const auto same = [](std::string text) { return text; };
  return find_with(directory, 0, 1, same, same);
}

ResumePoint find_resume_point(const std::filesystem::path& directory, const comm::Group& group) {
  const auto agree = [&](const std::string& fault) -> std::string {
    for (const c10::IValue& other : group.all_gather_object(fault)) {
      if (!other.toStringRef().empty()) return other.toStringRef();
    }
    return {};
  };
  const auto first = [&](const std::string& text) { return group.broadcast_object(text, 0).toStringRef(); };
  return find_with(directory, static_cast<std::size_t>(group.rank()), static_cast<std::size_t>(group.size()),
                   agree, first);
}

}  // namespace penstock::checkpoint
