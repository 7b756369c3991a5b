// Checks a run before its ranks start.
#include "base/text.h"
#include "train/loop/optimizer.h"
#include "train/model/assembly.h"
#include "train/model/auto_plan.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/checkpoint.h>
#include <penstock/train/checks.h>
#include <penstock/value/microbatch.h>

#include <ATen/ops/empty.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

int stages_of(const ParallelOptions& options) {
  if (to_lower(options.schedule) == "auto") return options.pp * std::max(options.stages_per_rank, 1);
  return checked_shape(options, options.schedule).stages();
}

// Checks the directory, or its nearest existing parent, in which it would be created.
void check_directory(const std::string& directory) {
  fs::path path = fs::absolute(directory);
  std::error_code error;
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  if (!fs::is_directory(path, error))
    throw UsageError("checkpoints cannot be written to " + quote(directory, 200) + ": " +
                         quote(path.string(), 200) + " is not a directory",
                     {}, "use another directory for checkpoints");
  if (access(path.c_str(), W_OK | X_OK) != 0)
    throw UsageError("checkpoints cannot be written to " + quote(directory, 200) +
                         ": no permission to write to " + quote(path.string(), 200),
                     {}, "use another directory for checkpoints");
}

std::vector<checkpoint::CheckpointLocation> checkpoints_in(const std::string& directory) {
  std::error_code error;
  return fs::is_directory(directory, error) ? checkpoint::list_checkpoints(directory)
                                            : std::vector<checkpoint::CheckpointLocation>{};
}

// Adds the optimizer states that the run will load. Parameters that no stage reads have no state.
void add_optimizer_states(std::vector<checkpoint::Piece>& pieces, const std::vector<checkpoint::Piece>& idle,
                          const OptimizerOptions& options) {
  std::set<std::string> unread;
  for (const checkpoint::Piece& piece : idle) unread.insert(piece.name);
  std::vector<runtime::NamedTensor> parameters;
  for (const checkpoint::Piece& piece : pieces)
    if (piece.local.requires_grad() && piece.local.numel() > 0 && !unread.contains(piece.name))
      parameters.push_back({piece.name, piece.local});
  for (const Optimizer::State& state : Optimizer(parameters, options).states()) {
    for (const runtime::NamedTensor& item : state.tensors) {
      pieces.push_back(full_piece(item.name, item.tensor, checkpoint::PieceKind::Optimizer));
      pieces.back().state = state.kind;
    }
  }
}

//! Appends `3 missing (a, b, c, …)`.
void add_titles(std::vector<std::string>& parts, const std::string& what, std::vector<std::string> titles) {
  if (titles.empty()) return;
  constexpr std::size_t shown = 3;
  const std::string count = std::to_string(titles.size());
  if (titles.size() > shown) {
    titles.resize(shown);
    titles.emplace_back("…");
  }
  parts.push_back(count + " " + what + " (" + join(titles, ", ") + ")");
}

void check_resume(const Model& model, const RunOptions& options,
                  const std::vector<checkpoint::CheckpointLocation>& places) {
  const auto newest =
      std::find_if(places.rbegin(), places.rend(),
                   [](const checkpoint::CheckpointLocation& place) { return place.complete; });
  if (newest == places.rend())
    throw UsageError(
        "there is no complete checkpoint to resume from in " + quote(options.checkpoint.directory, 200), {},
        "use the directory of the earlier run, or start a new run without resume");
  std::vector<checkpoint::Piece> pieces = model.whole_state();
  if (pieces.empty() || options.checkpoint.partly) return;
  std::optional<checkpoint::Checkpoint> checkpoint;
  try {
    checkpoint.emplace(newest->path);
  } catch (const Error&) {
    return;  // damaged: the ranks search for an older one and report it
  }
  add_optimizer_states(pieces, model.state().idle, options.optimizer);
  const checkpoint::LoadReport report =
      checkpoint->compare(pieces, {.allow_missing = true, .allow_extra = true, .allow_reshaped = true});
  std::vector<std::string> parts;
  add_titles(parts, "missing in the checkpoint", report.missing);
  add_titles(parts, "not in the model or optimizer", report.extra);
  add_titles(parts, "with a different shape", report.reshaped);
  if (!parts.empty())
    throw UsageError("the tensors of " + newest->path + " do not match this run: " + join(parts, "; "), {},
                     "use the model and optimizer of the run that wrote it, or resume partly");
}

void check_checkpoints(const Model& model, const RunOptions& options) {
  const CheckpointOptions& asked = options.checkpoint;
  if (asked.directory.empty()) {
    if (asked.resume) throw UsageError("resume needs a checkpoint directory");
    return;
  }
  if (asked.on_error == StoragePolicy::Stop) check_directory(asked.directory);
  const std::vector<checkpoint::CheckpointLocation> places = checkpoints_in(asked.directory);
  if (asked.resume) return check_resume(model, options, places);
  if (std::any_of(places.begin(), places.end(),
                  [](const checkpoint::CheckpointLocation& place) { return place.complete; }))
    throw UsageError(quote(asked.directory, 200) + " contains checkpoints of an earlier run", {},
                     "resume from the newest of them, or use another directory");
}

}  // namespace

void check_before_start(Model& model, const RunOptions& options) {
  check(options);
  const Rows rows = rows_of(options, 0, 0);
  model.check_rows(value::chunk_sizes(rows.end - rows.begin, options.parallel.microbatches));
  model.cut(stages_of(options.parallel));
  if (options.parallel.tp > 1) model.check_tensor_ranks(options.parallel.tp);
  check_checkpoints(model, options);
}

}  // namespace penstock::train
