// Loads weights over those of an archive.
#include "commands/trained_weights.h"

#include "base/text.h"
#include "commands/trained_gpt.h"
#include "train/preflight/model_checks.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/module_pieces.h>
#include <penstock/checkpoint/weights.h>
#include <penstock/train/adapters.h>

#include <ATen/ops/empty.h>

#include <map>

namespace penstock::tool {
namespace {

bool is_in_state_dict(const graph::Slot& slot) {
  return slot.kind == graph::Slot::Kind::Parameter ||
         (slot.kind == graph::Slot::Kind::Buffer && slot.persistent);
}

checkpoint::Piece piece_of_slot(const graph::Slot& slot, const at::Tensor& tensor) {
  const bool parameter = slot.kind == graph::Slot::Kind::Parameter;
  checkpoint::Piece piece = checkpoint::full_piece(
      slot.names[0], tensor, parameter ? checkpoint::PieceKind::Parameter : checkpoint::PieceKind::Buffer);
  piece.aliases = {slot.names.begin() + 1, slot.names.end()};
  return piece;
}

std::vector<checkpoint::Piece> state_metadata(const graph::Graph& graph) {
  std::vector<checkpoint::Piece> pieces;
  for (const graph::Slot& slot : graph.slots) {
    const auto& meta = graph.value(slot.value).meta;
    if (!is_in_state_dict(slot) || !meta) continue;
    std::vector<std::int64_t> sizes;
    for (const graph::Dim& dim : meta->sizes) sizes.push_back(dim.size);
    pieces.push_back(piece_of_slot(slot, at::empty(sizes, at::TensorOptions(meta->dtype).device(at::kMeta))));
  }
  return pieces;
}

void check_state_dict(const graph::Graph& graph, const checkpoint::Checkpoint& weights) {
  try {
    weights.compare(state_metadata(graph), {.convert_dtypes = true});
  } catch (const checkpoint::CheckpointError& error) {
    throw UsageError(error.message(), error.context(), "give the model that was trained");
  }
}

std::shared_ptr<const train::MergedWeights> merge(
    const std::shared_ptr<const graph::Pt2Archive>& archive,
    const std::shared_ptr<const checkpoint::Checkpoint>& weights) {
  const auto own = [archive](const std::string& name, std::optional<std::uint64_t> /*seed*/) {
    return archive->load(name);
  };
  return std::make_shared<const train::MergedWeights>(weights, state_metadata(archive->graph()), own);
}

checkpoint::ComputedWeights merged_gpt(const std::string& path, std::int64_t step) {
  const models::Gpt gpt = open_trained_gpt(path).load();
  std::vector<checkpoint::Piece> state = checkpoint::module_pieces(*gpt);
  std::map<std::string, at::Tensor> values;
  for (const checkpoint::Piece& piece : state) values.emplace(piece.name, piece.local);
  return {std::move(state), [values](const std::string& name) { return values.at(name); }, step};
}

}  // namespace

graph::NewWeight trained_values(const std::shared_ptr<const graph::Pt2Archive>& archive,
                                const std::string& path, const std::vector<checkpoint::RenameRule>& renames) {
  const auto weights =
      std::make_shared<const checkpoint::Checkpoint>(checkpoint::open_weights(path, renames));
  if (train::adapter_note(*weights))
    return [merged = merge(archive, weights)](const std::string& name) { return merged->read_changed(name); };
  check_state_dict(archive->graph(), *weights);
  return [weights](const std::string& name) {
    return weights->find(name) == nullptr ? at::Tensor() : weights->read(name);
  };
}

checkpoint::ComputedWeights merged_weights(const std::string& model, const std::string& path) {
  const auto adapters = std::make_shared<const checkpoint::Checkpoint>(checkpoint::open_checkpoint(path));
  if (!train::adapter_note(*adapters))
    throw UsageError(quote(path, 200) + " contains no adapters to merge", {}, "leave out --merged");
  if (model.empty()) return merged_gpt(path, adapters->step());
  const auto archive = std::make_shared<const graph::Pt2Archive>(open_archive(model));
  const auto read = [merged = merge(archive, adapters)](const std::string& name) {
    return merged->read(name);
  };
  return {state_metadata(archive->graph()), read, adapters->step()};
}

pipe::TensorSource tensor_source(const std::shared_ptr<const graph::Pt2Archive>& archive,
                                 const std::string& path,
                                 const std::vector<checkpoint::RenameRule>& renames) {
  if (path.empty()) return [archive](const std::vector<graph::Slot>& slots) { return archive->load(slots); };
  const graph::NewWeight new_value = trained_values(archive, path, renames);
  return [archive, new_value](const std::vector<graph::Slot>& slots) {
    std::vector<at::Tensor> tensors = archive->load(slots);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (!is_in_state_dict(slots[i])) continue;
      at::Tensor value;
      for (const std::string& name : slots[i].names)  // weights may have only one of them
        if (!value.defined()) value = new_value(name);
      if (value.defined()) tensors[i].detach().copy_(value);
    }
    return tensors;
  };
}

OpenedModel open_with_weights(const std::string& model, const std::string& checkpoint,
                              const std::string& input, const std::vector<checkpoint::RenameRule>& renames) {
  if (!renames.empty() && (model.empty() || checkpoint.empty()))
    throw UsageError("--rename maps the names of weights to those of an exported model", {},
                     "give both: MODEL.pt2 --checkpoint WEIGHTS");
  if (model.empty() && checkpoint.empty())
    throw UsageError("there is no model", {},
                     "give an exported model, or a checkpoint of the built-in GPT with --checkpoint DIR");
  if (model.empty()) {
    graph::Captured captured = capture_trained_gpt(checkpoint, input);
    std::map<std::string, at::Tensor> tensors;
    for (std::size_t i = 0; i < captured.graph.slots.size(); ++i)
      tensors[captured.graph.slots[i].names[0]] = captured.tensors[i];
    const auto source = [tensors](const std::vector<graph::Slot>& slots) {
      std::vector<at::Tensor> found;
      for (const graph::Slot& slot : slots) found.push_back(tensors.at(slot.names[0]).detach().clone());
      return found;
    };
    return {std::move(captured.graph), source};
  }
  const auto archive = std::make_shared<const graph::Pt2Archive>(open_archive(model));
  return {archive->graph(), tensor_source(archive, checkpoint, renames)};
}

}  // namespace penstock::tool
