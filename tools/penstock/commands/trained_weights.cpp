// Loads weights over those of an archive.
#include "commands/trained_weights.h"

#include "commands/trained_gpt.h"
#include "train/preflight/model_checks.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/weights.h>

#include <ATen/ops/empty.h>

#include <map>

namespace penstock::tool {
namespace {

bool is_in_state_dict(const graph::Slot& slot) {
  return slot.kind == graph::Slot::Kind::Parameter ||
         (slot.kind == graph::Slot::Kind::Buffer && slot.persistent);
}

checkpoint::Piece piece_of_slot(const graph::Slot& slot, const at::Tensor& tensor) {
  checkpoint::Piece piece = checkpoint::full_piece(slot.names[0], tensor);
  piece.aliases = {slot.names.begin() + 1, slot.names.end()};
  return piece;
}

}  // namespace

checkpoint::Checkpoint open_trained_weights(const graph::Graph& graph, const std::string& path) {
  checkpoint::Checkpoint weights = checkpoint::open_weights(path);
  std::vector<checkpoint::Piece> pieces;
  for (const graph::Slot& slot : graph.slots) {
    const auto& meta = graph.value(slot.value).meta;
    if (!is_in_state_dict(slot) || !meta) continue;
    std::vector<std::int64_t> sizes;
    for (const graph::Dim& dim : meta->sizes) sizes.push_back(dim.size);
    pieces.push_back(piece_of_slot(slot, at::empty(sizes, at::TensorOptions(meta->dtype).device(at::kMeta))));
  }
  try {
    weights.compare(pieces, {.convert_dtypes = true});
  } catch (const checkpoint::CheckpointError& error) {
    throw UsageError(error.message(), error.context(), "give the model that was trained");
  }
  return weights;
}

pipe::TensorSource tensor_source(const std::shared_ptr<const graph::Pt2Archive>& archive,
                                 const std::string& path) {
  if (path.empty()) return [archive](const std::vector<graph::Slot>& slots) { return archive->load(slots); };
  const auto weights =
      std::make_shared<const checkpoint::Checkpoint>(open_trained_weights(archive->graph(), path));
  return [archive, weights](const std::vector<graph::Slot>& slots) {
    std::vector<at::Tensor> tensors = archive->load(slots);
    std::vector<checkpoint::Piece> pieces;
    for (std::size_t i = 0; i < slots.size(); ++i)
      if (is_in_state_dict(slots[i])) pieces.push_back(piece_of_slot(slots[i], tensors[i].detach()));
    weights->load(pieces, {.allow_extra = true, .convert_dtypes = true});
    return tensors;
  };
}

OpenedModel open_with_weights(const std::string& model, const std::string& checkpoint,
                              const std::string& input) {
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
  return {archive->graph(), tensor_source(archive, checkpoint)};
}

}  // namespace penstock::tool
