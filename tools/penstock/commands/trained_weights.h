// Exported models with the weights of a checkpoint.
#pragma once

#include <penstock/checkpoint/convert.h>
#include <penstock/checkpoint/rename.h>
#include <penstock/graph/pt2.h>
#include <penstock/graph/pt2_copy.h>
#include <penstock/pipe/pipe.h>

#include <memory>
#include <string>
#include <vector>

namespace penstock::tool {

constexpr const char* kRenameHelp =
    "with --checkpoint: map names of its tensors and modules to those of the model, in order, as with train "
    "--init-rename: model=,layers.*=blocks.*";
constexpr const char* kTrainedHelp =
    "use the weights of a checkpoint (or of a directory of checkpoints: the newest), a .safetensors file or "
    "a "
    "Hugging Face directory, instead of those in the archive";

//! Returns the values of the weights at `path` by name; an undefined tensor if the archive has the same.
//! Adapters are merged. Throws UsageError if the weights are not those of the model; it lists every
//! difference. Stored names are renamed by the rules.
graph::NewWeight trained_values(const std::shared_ptr<const graph::Pt2Archive>& archive,
                                const std::string& path,
                                const std::vector<checkpoint::RenameRule>& renames = {});

//! The weights of the model that the adapters of a checkpoint make with their base, which comes from the
//! archive `model`, or is that of the built-in GPT if it is empty. Throws UsageError if the checkpoint
//! contains no adapters, or those of another model.
checkpoint::ComputedWeights merged_weights(const std::string& model, const std::string& path);

//! Reads the tensors of the archive, with the values of the weights at `path` unless it is empty. Reads only
//! the requested tensors. Adapters are merged.
pipe::TensorSource tensor_source(const std::shared_ptr<const graph::Pt2Archive>& archive,
                                 const std::string& path,
                                 const std::vector<checkpoint::RenameRule>& renames = {});

//! A model that a command runs or shows.
struct OpenedModel {
  graph::Graph graph;
  pipe::TensorSource source;
};

//! Opens an exported model with the weights at `checkpoint`, unless it is empty. Without a model, opens the
//! built-in GPT of the checkpoint, for the length of the `tokens` in the file `input`, or for its full
//! context without a file. Throws UsageError if neither is given.
OpenedModel open_with_weights(const std::string& model, const std::string& checkpoint,
                              const std::string& input,
                              const std::vector<checkpoint::RenameRule>& renames = {});

}  // namespace penstock::tool
