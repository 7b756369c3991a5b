// Checks a run before its ranks start.
#include "base/text.h"
#include "train/loop/initial_weights.h"
#include "train/loop/optimizer.h"
#include "train/lora/adapter_note.h"
#include "train/model/assembly.h"
#include "train/model/auto_plan.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/checkpoint.h>
#include <penstock/train/trainer.h>
#include <penstock/value/microbatch.h>

#include <ATen/ops/empty.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

// Checks the directory, or its nearest existing parent, in which it would be created.
void check_directory(const fs::path& directory) {
  const std::string what = "checkpoints cannot be written to " + quote(directory.string(), 200) + ": ";
  fs::path path = fs::absolute(directory);
  std::error_code error;
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  if (!fs::is_directory(path, error))
    throw UsageError(what + quote(path.string(), 200) + " is not a directory", {},
                     "use another directory for checkpoints");
  if (access(path.c_str(), W_OK | X_OK) != 0)
    throw UsageError(what + "no permission to write to " + quote(path.string(), 200), {},
                     "use another directory for checkpoints");
}

std::vector<checkpoint::CheckpointLocation> checkpoints_in(const fs::path& directory) {
  std::error_code error;
  return fs::is_directory(directory, error) ? checkpoint::list_checkpoints(directory.string())
                                            : std::vector<checkpoint::CheckpointLocation>{};
}

// Adds the optimizer states that the run will load. Parameters that no stage reads, and frozen ones, have
// none.
void add_optimizer_states(std::vector<checkpoint::Piece>& pieces,
                          const std::vector<checkpoint::Piece>& unused, const OptimizerOptions& options,
                          const ParameterGroups& groups) {
  std::set<std::string> unread;
  for (const checkpoint::Piece& piece : unused) unread.insert(piece.name);
  std::vector<value::NamedTensor> parameters;
  for (const checkpoint::Piece& piece : pieces)
    if (piece.local.requires_grad() && piece.local.numel() > 0 && !unread.contains(piece.name) &&
        !groups.of(piece.name).frozen)
      parameters.push_back({piece.name, piece.local});
  for (const Optimizer::State& state : Optimizer(parameters, options).states()) {
    for (const value::NamedTensor& item : state.tensors) {
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

bool is_complete(const checkpoint::CheckpointLocation& location) {
  return location.complete;
}

// All pieces of the model except the named ones.
std::vector<checkpoint::Piece> pieces_without(const Model& model, const std::set<std::string>& names) {
  std::vector<checkpoint::Piece> pieces = model.state_metadata();
  std::erase_if(pieces, [&](const checkpoint::Piece& piece) { return names.contains(piece.name); });
  return pieces;
}

void check_resume(const Model& model, const StagedModel& split, const RunOptions& options,
                  const std::vector<checkpoint::CheckpointLocation>& checkpoints) {
  const auto newest = std::find_if(checkpoints.rbegin(), checkpoints.rend(), is_complete);
  const ModelState state = split.state();
  const bool starts = newest == checkpoints.rend();
  // The base of adapters is not in the checkpoint.
  if (options.init && (starts || !state.base.empty()))
    check_initial_weights(*options.init, model, pieces_without(model, state.adapters));
  if (options.init && starts) return;
  if (starts)
    throw UsageError("there is no complete checkpoint to resume from in " +
                         quote(options.checkpoint.directory->string(), 200),
                     {}, "use the directory of the earlier run, or start a new run without resume");
  std::vector<checkpoint::Piece> pieces = pieces_without(model, state.base);
  if (pieces.empty() || options.checkpoint.allow_partial) return;
  std::optional<checkpoint::Checkpoint> checkpoint;
  try {
    checkpoint.emplace(newest->path);
  } catch (const Error&) {
    return;  // damaged: the ranks search for an older one and report it
  }
  check_same_adapters(adapter_note(*checkpoint), adapter_note_of(model, options.init));
  add_optimizer_states(pieces, state.unused, options.optimizer, parameter_groups(model, options.parameters));
  const checkpoint::LoadReport report = checkpoint->compare(
      pieces, {.allow_missing = true, .allow_extra = true, .allow_reshaped = true, .convert_dtypes = true});
  std::vector<std::string> parts;
  add_titles(parts, "missing in the checkpoint", report.missing);
  add_titles(parts, "not in the model or optimizer", report.extra);
  add_titles(parts, "with a different shape", report.reshaped);
  if (!parts.empty())
    throw UsageError(
        "the tensors of " + newest->path.string() + " do not match this run: " + join(parts, "; "), {},
        "use the model and optimizer of the run that wrote it, or resume partly");
}

void check_checkpoints(const Model& model, const StagedModel& split, const RunOptions& options) {
  const CheckpointOptions& checkpoint_options = options.checkpoint;
  if (options.init && !checkpoint_options.resume)
    check_initial_weights(*options.init, model, pieces_without(model, split.state().adapters));
  if (!checkpoint_options.directory) {
    if (checkpoint_options.resume) throw UsageError("resume needs a checkpoint directory");
    return;
  }
  if (checkpoint_options.on_error == StoragePolicy::Stop) check_directory(*checkpoint_options.directory);
  const std::vector<checkpoint::CheckpointLocation> checkpoints =
      checkpoints_in(*checkpoint_options.directory);
  if (checkpoint_options.resume) return check_resume(model, split, options, checkpoints);
  if (std::any_of(checkpoints.begin(), checkpoints.end(), is_complete))
    throw UsageError(
        quote(checkpoint_options.directory->string(), 200) + " contains checkpoints of an earlier run", {},
        "resume from the newest of them, or use another directory");
}

}  // namespace

void check_before_start(const Model& model, const RunOptions& options) {
  check(options);
  const Rows rows = rows_of(options, 0, 0);
  model.check_rows(value::chunk_sizes(rows.end - rows.begin, options.parallel.microbatches));
  const auto split = model.split_at(model.split(num_stages(options.parallel)));
  if (options.parallel.tp > 1) split->check_tensor_ranks(options.parallel.tp);
  split->recompute_modules(options.parallel.recompute_modules);
  parameter_groups(model, options.parameters);  // throws if a pattern selects nothing
  check_checkpoints(model, *split, options);
}

}  // namespace penstock::train
