// The state of a run as pieces of a checkpoint.
#include "train/saves.h"

#include "train/tensor_parallel.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>
#include <penstock/checkpoint/distributed.h>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

#include <cerrno>
#include <set>

namespace penstock::train {
namespace {

// Which part of which whole a rank's tensor is, where parameters are cut or replicas share them.
struct Share {
  std::vector<std::int64_t> shape;
  Part part;
};

std::map<std::string, Share> shares_of(const Assembly& assembly) {
  std::map<std::string, Share> shares;
  if (!assembly.sharded) {
    for (const auto& [index, stage] : assembly.stages)
      for (const NamedTensor& item : stage->parameters())
        if (const Piece piece = tensor_piece(item.name, item.tensor);
            !std::holds_alternative<Whole>(piece.part))
          shares[item.name] = {piece.shape, piece.part};
    return shares;
  }
  for (const auto& [index, stage] : assembly.stages)
    for (const ShardedParameter& item : assembly.sharded->sharded(StageId(index)).shards())
      shares[item.name] = item.form ? Share{item.form->sizes, placed_part(*item.form, item.begin, item.end)}
                                    : Share{item.shape, FlatRange{item.begin, item.end}};
  return shares;
}

// Copies of a tied parameter that one rank holds are one piece.
std::vector<Piece> pieces_of(const Assembly& assembly) {
  std::vector<Piece> pieces;
  std::set<std::pair<std::string, std::string>> known;
  const std::map<std::string, Share> shares = shares_of(assembly);
  const auto add = [&](const NamedTensor& item, PieceKind kind, const std::string& state) {
    if (kind == PieceKind::Buffer && assembly.state.transient.contains(item.name)) return;
    if (!known.emplace(item.name, state).second) return;
    Piece piece = whole_piece(item.name, local_part(item.tensor).detach(), kind);
    piece.state = state;
    const auto share = shares.find(item.name);
    if (share != shares.end() && kind != PieceKind::Buffer && (state.empty() || item.tensor.dim() > 0)) {
      piece.shape = share->second.shape;
      piece.part = share->second.part;
    }
    const auto tied = assembly.state.aliases.find(item.name);
    if (state.empty() && tied != assembly.state.aliases.end()) piece.aliases = tied->second;
    pieces.push_back(std::move(piece));
  };
  for (const auto& [index, stage] : assembly.stages) {
    for (const NamedTensor& item : stage->parameters()) add(item, PieceKind::Parameter, {});
    for (const NamedTensor& item : stage->buffers()) add(item, PieceKind::Buffer, {});
  }
  pieces.insert(pieces.end(), assembly.state.idle.begin(), assembly.state.idle.end());
  for (const Optimizer::State& state : assembly.optimizer->states())
    for (const NamedTensor& item : state.tensors) add(item, PieceKind::Optimizer, state.kind);
  return pieces;
}

// Those copies get the values of the first.
void copy_to_twins(const Assembly& assembly) {
  const at::NoGradGuard no_grad;
  const auto spread = [](const std::vector<NamedTensor>& items) {
    std::map<std::string, at::Tensor> first;
    for (const NamedTensor& item : items) {
      const auto [it, fresh] = first.emplace(item.name, item.tensor);
      if (!fresh && !it->second.is_same(item.tensor)) item.tensor.copy_(it->second);
    }
  };
  std::vector<NamedTensor> all;
  for (const auto& [index, stage] : assembly.stages) {
    for (const NamedTensor& item : stage->parameters()) all.push_back(item);
    for (const NamedTensor& item : stage->buffers()) all.push_back(item);
  }
  spread(all);
  for (const Optimizer::State& state : assembly.optimizer->states()) spread(state.tensors);
}

bool has_complete(const std::string& directory) {
  try {
    for (const CheckpointPlace& place : list_checkpoints(directory))
      if (place.complete) return true;
  } catch (const StorageError&) {  // no such directory yet
  }
  return false;
}

}  // namespace

Saves::Saves(const Mesh& mesh, const RunOptions& options) : mesh_(mesh), options_(options) {
  const CheckpointOptions& asked = options.checkpoint;
  if (asked.directory.empty()) return;
  const bool restarted = attempt_number() > 0;
  // One rank looks, so that all do the same.
  const bool exist = mesh.world.broadcast_object(c10::IValue(has_complete(asked.directory)), 0).toBool();
  if (exist && !restarted && !asked.resume)
    throw UsageError(quote(asked.directory, 200) + " holds checkpoints of an earlier run", {},
                     "resume from the newest of them, or use another directory");
  if (asked.resume || (restarted && exist)) resume_.emplace(find_resume_point(asked.directory, mesh.world));
  try {
    writer_ =
        std::make_unique<CheckpointWriter>(asked.directory, mesh.world, WriterOptions{.keep = asked.keep});
  } catch (const StorageError& error) {
    // A directory that another run holds is never shared.
    if (asked.on_error == StoragePolicy::Stop || error.code() == EBUSY) throw;
    passed_over_.push_back("no checkpoint will be written, and training goes on: " + error.message());
  }
}

std::vector<std::string> Saves::remarks() const {
  if (!resume_) return passed_over_;
  std::vector<std::string> remarks = resume_->passed_over;
  remarks.insert(remarks.end(), passed_over_.begin(), passed_over_.end());
  const std::string seed = resume_->checkpoint.note("seed");
  if (!seed.empty() && seed != std::to_string(options_.seed))
    remarks.push_back("the checkpoint is of a run with seed " + seed + ", and this one has " +
                      std::to_string(options_.seed));
  return remarks;
}

void Saves::load(const Assembly& assembly) {
  if (!resume_) return;
  const bool any = options_.checkpoint.partly;
  const LoadReport report = resume_->checkpoint.load(
      pieces_of(assembly), mesh_.world, {.allow_missing = any, .allow_extra = any, .allow_reshaped = any});
  const auto remark = [&](const std::vector<std::string>& titles, const std::string& what) {
    if (!titles.empty()) passed_over_.push_back(what + ": " + join(titles, ", "));
  };
  remark(report.missing, "not in the checkpoint, left as they begin");
  remark(report.extra, "in the checkpoint, but not in the model");
  remark(report.reshaped, "of another shape in the checkpoint, left as they begin");
  copy_to_twins(assembly);
  assembly.pipeline->set_steps(static_cast<std::uint64_t>(step() * options_.accumulate));
}

Decisions Saves::decisions() const {
  if (!resume_) return {};
  return {resume_->checkpoint.note("plan"), resume_->checkpoint.note("cuts")};
}

void Saves::save(std::int64_t step, const Assembly& assembly, const Decisions& decisions) {
  Notes notes{{"config", options_.config}, {"seed", std::to_string(options_.seed)}};
  if (!decisions.plan.empty()) notes["plan"] = decisions.plan;
  if (!decisions.cuts.empty()) notes["cuts"] = decisions.cuts;
  writer_->save(step, pieces_of(assembly), notes);
}

void Saves::wait() {
  if (writer_) writer_->wait();
}

std::optional<std::int64_t> Saves::last_complete() const {
  return writer_ ? writer_->last_complete() : std::nullopt;
}

std::string Saves::newest() const {
  if (!writer_) return {};
  if (const auto step = writer_->last_complete())
    return options_.checkpoint.directory + "/" + checkpoint_name(*step);
  return resume_ ? resume_->checkpoint.path() : std::string();
}

}  // namespace penstock::train
