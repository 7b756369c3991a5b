// Weights are opened as a checkpoint, so that loading them distributes them over the ranks of any topology.
#include "train/loop/initial_weights.h"

#include "base/text.h"
#include "checkpoint/pieces/local_pieces.h"
#include "checkpoint/pieces/read_region.h"
#include "train/lora/adapter_merge.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/weights.h>
#include <penstock/value/tensor_meta.h>

#include <algorithm>

namespace penstock::train {
namespace {

constexpr const char* kMismatchHint =
    "map the names with rename rules for the initial weights, or load them partly: only the tensors that "
    "match";

checkpoint::LoadOptions load_options(const InitialWeights& weights) {
  const bool any = weights.allow_partial;
  return {.allow_missing = any, .allow_extra = any, .allow_reshaped = any, .convert_dtypes = true};
}

// Every difference, on lines of its own.
std::string differences(const checkpoint::LoadReport& report) {
  std::string text;
  const auto add = [&](const char* heading, const std::vector<std::string>& titles) {
    if (!titles.empty())
      text += str_cat("\n  ", heading, " (", titles.size(), "):\n    ", join(titles, "\n    "));
  };
  add("missing in the weights", report.missing);
  add("in the weights but not in the model", report.extra);
  add("with a different shape", report.reshaped);
  return text;
}

// A partial load that loads nothing is a mistake in the names.
void check_any(const checkpoint::Checkpoint& weights, const checkpoint::LoadReport& report,
               std::size_t requested) {
  if (requested > 0 && report.missing.size() + report.reshaped.size() >= requested)
    throw UsageError("no tensor of " + quote(weights.path().string(), 200) + " matches the model", {},
                     "map the names with rename rules for the initial weights");
}

// Casts change the precision of a number, not its meaning.
void check_dtypes(const checkpoint::Checkpoint& weights, const std::vector<checkpoint::Piece>& pieces) {
  for (const checkpoint::Piece& piece : pieces) {
    const checkpoint::StoredTensor* const stored = weights.find(piece.name);
    if (stored == nullptr || stored->dtype == piece.local.scalar_type()) continue;
    if (at::isFloatingType(stored->dtype) == at::isFloatingType(piece.local.scalar_type())) continue;
    throw UsageError(str_cat(piece.name, " of ", quote(weights.path().string(), 200), " has dtype ",
                             value::dtype_name(stored->dtype), ", but the model has ",
                             value::dtype_name(piece.local.scalar_type())),
                     {}, "store it as a floating-point tensor; quantized weights cannot be trained");
  }
}

// Merges whole tensors, one at a time, so that the values do not depend on the topology.
std::vector<std::string> load_merged(const AdapterMerge& merge,
                                     const std::vector<checkpoint::Piece>& pieces) {
  for (const checkpoint::Piece& piece : pieces) {
    const at::Tensor full = merge.read(piece.name);
    for (const checkpoint::Piece& part : checkpoint::local_pieces({piece}))
      checkpoint::copy_part(full, part.region, part.local);
  }
  return {str_cat("initial weights from ", merge.path().string(), ": ", to_string(merge.note().lora),
                  ", merged into its base")};
}

}  // namespace

std::vector<std::string> load_initial_weights(const InitialWeights& weights, const Model& model,
                                              std::vector<checkpoint::Piece> pieces,
                                              const comm::Group& world) {
  std::erase_if(pieces, [](const checkpoint::Piece& piece) { return !piece.state.empty(); });
  if (const auto merge = open_adapters(weights, base_state(model), own_weights(model)))
    return load_merged(*merge, pieces);
  const checkpoint::Checkpoint opened = checkpoint::open_weights(weights.path, weights.renames);
  const checkpoint::LoadReport report = opened.load(pieces, world, load_options(weights));
  std::vector<std::string> messages{"initial weights from " + opened.path().string()};
  const auto add = [&](const std::vector<std::string>& titles, const std::string& what) {
    if (!titles.empty()) messages.push_back(what + ": " + join(titles, ", "));
  };
  add(report.missing, "not in the weights, initial values of the model kept");
  add(report.extra, "in the weights but not in the model");
  add(report.reshaped, "with a different shape in the weights, initial values of the model kept");
  return messages;
}

void check_initial_weights(const InitialWeights& weights, const Model& model,
                           const std::vector<checkpoint::Piece>& pieces) {
  // Merging requires the same model, so nothing else can differ.
  if (open_adapters(weights, base_state(model), own_weights(model))) return;
  const checkpoint::Checkpoint opened = checkpoint::open_weights(weights.path, weights.renames);
  if (pieces.empty()) return;
  InitialWeights partial = weights;
  partial.allow_partial = true;
  try {
    const checkpoint::LoadReport report = opened.compare(pieces, load_options(partial));
    const std::string found = weights.allow_partial ? "" : differences(report);
    if (!found.empty())
      throw UsageError(quote(opened.path().string(), 200) + " does not match the model:" + found, {},
                       kMismatchHint);
    check_any(opened, report, pieces.size());
  } catch (const checkpoint::CheckpointError& error) {
    throw UsageError(error.message(), error.context(), kMismatchHint);
  }
  check_dtypes(opened, pieces);
}

}  // namespace penstock::train
