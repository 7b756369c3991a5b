// Loads the weights from which a new run starts.
#pragma once

#include <penstock/checkpoint/piece.h>
#include <penstock/comm/group.h>
#include <penstock/train/model.h>
#include <penstock/train/options.h>

#include <string>
#include <vector>

namespace penstock::train {

//! Fills the parameters and buffers among the pieces of this rank. The adapters of a run with LoRA are merged
//! into their base. Collective. Returns messages for the user. Throws CheckpointError, which lists every
//! difference, if the weights do not match the model.
std::vector<std::string> load_initial_weights(const InitialWeights& weights, const Model& model,
                                              std::vector<checkpoint::Piece> pieces,
                                              const comm::Group& world);

//! Compares the weights with `pieces`, all tensors of the model, before ranks start. Throws UsageError, which
//! lists every difference.
void check_initial_weights(const InitialWeights& weights, const Model& model,
                           const std::vector<checkpoint::Piece>& pieces);

}  // namespace penstock::train
