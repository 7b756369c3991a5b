// Converts the state of a run to pieces of a checkpoint and back.
#include "train/loop/checkpoint_manager.h"

#include "base/text.h"
#include "train/data/locked_source.h"
#include "train/loop/initial_weights.h"
#include "train/lora/adapter_note.h"
#include "train/model/tensor_parallel_stage.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/distributed_pieces.h>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cerrno>
#include <set>

namespace penstock::train {
namespace {

constexpr const char* kSplitNote = "cuts";  // key in checkpoint files; predates the term "split"

// The full shape and the region of a sharded parameter of this rank.
struct ShardRegion {
  std::vector<std::int64_t> shape;
  checkpoint::Region region;
};

std::map<std::string, ShardRegion> shard_regions(const Assembly& assembly) {
  std::map<std::string, ShardRegion> regions;
  if (!assembly.sharded) {
    for (const auto& [index, stage] : assembly.stages)
      for (const value::NamedTensor& item : stage->parameters())
        if (const checkpoint::Piece piece = checkpoint::tensor_piece(item.name, item.tensor);
            !std::holds_alternative<checkpoint::FullTensor>(piece.region))
          regions[item.name] = {piece.shape, piece.region};
    return regions;
  }
  for (const auto& [index, stage] : assembly.stages)
    for (const parallel::ShardedParameter& item : assembly.sharded->sharded(index).shards())
      regions[item.name] = item.spec ? ShardRegion{item.spec->sizes,
                                                   checkpoint::local_region(*item.spec, item.begin, item.end)}
                                     : ShardRegion{item.shape, checkpoint::FlatRange{item.begin, item.end}};
  return regions;
}

// Several copies of a tied parameter on one rank give one piece.
std::vector<checkpoint::Piece> pieces_of(const Assembly& assembly) {
  std::vector<checkpoint::Piece> pieces;
  std::set<std::pair<std::string, std::string>> known;
  const std::map<std::string, ShardRegion> regions = shard_regions(assembly);
  const auto add = [&](const value::NamedTensor& item, checkpoint::PieceKind kind, const std::string& state) {
    if (kind == checkpoint::PieceKind::Buffer && assembly.state.transient.contains(item.name)) return;
    if (!known.emplace(item.name, state).second) return;
    checkpoint::Piece piece = full_piece(item.name, local_shard(item.tensor).detach(), kind);
    piece.state = state;
    const auto found = regions.find(item.name);
    if (found != regions.end() && kind != checkpoint::PieceKind::Buffer &&
        (state.empty() || item.tensor.dim() > 0)) {
      piece.shape = found->second.shape;
      piece.region = found->second.region;
    }
    const auto tied = assembly.state.aliases.find(item.name);
    if (state.empty() && tied != assembly.state.aliases.end()) piece.aliases = tied->second;
    pieces.push_back(std::move(piece));
  };
  for (const auto& [index, stage] : assembly.stages) {
    for (const value::NamedTensor& item : stage->parameters())
      add(item, checkpoint::PieceKind::Parameter, {});
    for (const value::NamedTensor& item : stage->buffers()) add(item, checkpoint::PieceKind::Buffer, {});
  }
  pieces.insert(pieces.end(), assembly.state.unused.begin(), assembly.state.unused.end());
  for (const Optimizer::State& state : assembly.optimizer->states())
    for (const value::NamedTensor& item : state.tensors)
      add(item, checkpoint::PieceKind::Optimizer, state.kind);
  return pieces;
}

// The pieces that checkpoints contain: all, or with LoRA those that are not the base.
std::vector<checkpoint::Piece> stored_pieces(const Assembly& assembly) {
  std::vector<checkpoint::Piece> pieces = pieces_of(assembly);
  std::erase_if(pieces, [&](const auto& piece) { return assembly.state.base.contains(piece.name); });
  return pieces;
}

// Copies the loaded values to the other copies of a tied parameter.
void copy_to_tied(const Assembly& assembly) {
  const at::NoGradGuard no_grad;
  const auto copy_first = [](const std::vector<value::NamedTensor>& items) {
    std::map<std::string, at::Tensor> first;
    for (const value::NamedTensor& item : items) {
      const auto [it, fresh] = first.emplace(item.name, item.tensor);
      if (!fresh && !it->second.is_same(item.tensor)) item.tensor.copy_(it->second);
    }
  };
  std::vector<value::NamedTensor> all;
  for (const auto& [index, stage] : assembly.stages) {
    for (const value::NamedTensor& item : stage->parameters()) all.push_back(item);
    for (const value::NamedTensor& item : stage->buffers()) all.push_back(item);
  }
  copy_first(all);
  for (const Optimizer::State& state : assembly.optimizer->states()) copy_first(state.tensors);
}

bool has_complete(const std::filesystem::path& directory) {
  try {
    for (const checkpoint::CheckpointLocation& location : checkpoint::list_checkpoints(directory.string()))
      if (location.complete) return true;
  } catch (const checkpoint::StorageError&) {  // the directory does not exist yet
  }
  return false;
}

}  // namespace

CheckpointManager::CheckpointManager(const comm::Group& world, const RunOptions& options,
                                     checkpoint::Notes notes)
    : world_(world), options_(options), notes_(std::move(notes)) {
  const CheckpointOptions& checkpoint_options = options.checkpoint;
  if (!checkpoint_options.directory) return;
  const std::string directory = checkpoint_options.directory->string();
  const bool restarted = restart_count() > 0;
  // One rank checks, so that all ranks take the same branch.
  const bool exist = world.broadcast_object(c10::IValue(has_complete(directory)), 0).toBool();
  if (exist && !restarted && !checkpoint_options.resume)
    throw UsageError(quote(directory, 200) + " contains checkpoints of an earlier run", {},
                     "resume from the newest of them, or use another directory");
  const bool resumes = checkpoint_options.resume && (exist || !options.init);
  if (resumes || (restarted && exist)) resume_.emplace(checkpoint::find_resume_point(directory, world));
  if (resume_ && !checkpoint_options.allow_partial)
    check_same_adapters(adapter_note(resume_->checkpoint), adapter_note(notes_));
  try {
    writer_ = std::make_unique<checkpoint::CheckpointWriter>(
        directory, world, checkpoint::WriterOptions{.keep = checkpoint_options.keep, .overlap_copies = true});
  } catch (const checkpoint::StorageError& error) {
    // A directory that another run has locked is always an error.
    if (checkpoint_options.on_error == StoragePolicy::Stop || error.code() == EBUSY) throw;
    messages_.push_back("no checkpoints will be written; training continues: " + error.message());
  }
}

std::vector<std::string> CheckpointManager::messages() const {
  if (!resume_) return messages_;
  std::vector<std::string> messages = resume_->skipped;
  messages.insert(messages.end(), messages_.begin(), messages_.end());
  const std::optional<std::string> seed = resume_->checkpoint.note("seed");
  if (seed && *seed != std::to_string(options_.seed))
    messages.push_back("the checkpoint was written with seed " + *seed + ", but this run has seed " +
                       std::to_string(options_.seed));
  return messages;
}

void CheckpointManager::load(const Assembly& assembly, const Model& model) {
  // The base of adapters is not in the checkpoint.
  if (!resume_ || !assembly.state.base.empty()) initialize(assembly, model);
  if (!resume_) return;
  const bool any = options_.checkpoint.allow_partial;
  const checkpoint::LoadReport report = resume_->checkpoint.load(
      stored_pieces(assembly), world_,
      {.allow_missing = any, .allow_extra = any, .allow_reshaped = any, .convert_dtypes = true});
  const auto report_titles = [&](const std::vector<std::string>& titles, const std::string& what) {
    if (!titles.empty()) messages_.push_back(what + ": " + join(titles, ", "));
  };
  report_titles(report.missing, "not in the checkpoint, initial values kept");
  report_titles(report.extra, "in the checkpoint but not in the model");
  report_titles(report.reshaped, "with a different shape in the checkpoint, initial values kept");
  copy_to_tied(assembly);
  assembly.pipeline->set_steps(static_cast<std::uint64_t>(step() * options_.accumulate));
}

void CheckpointManager::initialize(const Assembly& assembly, const Model& model) {
  if (!options_.init) return;
  std::vector<checkpoint::Piece> pieces = pieces_of(assembly);
  std::erase_if(pieces, [&](const auto& piece) { return assembly.state.adapters.contains(piece.name); });
  const std::vector<std::string> messages =
      load_initial_weights(*options_.init, model, std::move(pieces), world_);
  messages_.insert(messages_.end(), messages.begin(), messages.end());
  copy_to_tied(assembly);
}

Decisions CheckpointManager::decisions() const {
  if (!resume_) return {};
  Decisions decisions{
      resume_->checkpoint.note("plan").value_or(""), {}, resume_->checkpoint.note("loss_scale").value_or("")};
  if (const std::optional<std::string> split = resume_->checkpoint.note(kSplitNote))
    decisions.split = parse_model_split(*split);
  return decisions;
}

void CheckpointManager::save(std::int64_t step, const Assembly& assembly, const Decisions& decisions) {
  checkpoint::Notes notes = notes_;
  notes["seed"] = std::to_string(options_.seed);
  if (!decisions.plan.empty()) notes["plan"] = decisions.plan;
  if (!decisions.loss_scale.empty()) notes["loss_scale"] = decisions.loss_scale;
  if (!decisions.position.empty()) notes[kPositionNote] = decisions.position;
  if (decisions.split) notes[kSplitNote] = to_string(*decisions.split);
  const std::vector<checkpoint::Piece> pieces = stored_pieces(assembly);
  writer_->save(step, pieces, notes);
  // The next forward pass may change buffers, for example those of batch norm.
  if (std::any_of(pieces.begin(), pieces.end(),
                  [](const auto& piece) { return piece.kind == checkpoint::PieceKind::Buffer; }))
    writer_->wait_for_copies();
}

void CheckpointManager::wait_for_copies() {
  if (writer_) writer_->wait_for_copies();
}

void CheckpointManager::wait() {
  if (writer_) writer_->wait();
}

std::optional<std::int64_t> CheckpointManager::last_complete() const {
  return writer_ ? writer_->last_complete() : std::nullopt;
}

std::optional<std::filesystem::path> CheckpointManager::newest() const {
  if (!writer_) return std::nullopt;
  if (const auto step = writer_->last_complete())
    return *options_.checkpoint.directory / checkpoint::checkpoint_name(*step);
  return resume_ ? std::optional<std::filesystem::path>(resume_->checkpoint.path()) : std::nullopt;
}

}  // namespace penstock::train
