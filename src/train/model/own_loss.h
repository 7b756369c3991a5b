// Losses that exported models compute themselves.
#pragma once

#include <penstock/graph/ir.h>
#include <penstock/train/data.h>
#include <penstock/train/options.h>

#include <optional>

namespace penstock::train {

//! Decides what the loss of the model is a mean over, if `mean` is Auto. Throws UsageError if the model has
//! no labels of which the loss can be a mean.
LossMean resolve_loss_mean(const graph::Graph& graph, LossMean mean);

//! The labels that the loss is a mean over; nullopt for rows.
std::optional<LabelInput> label_input(LossMean mean);

}  // namespace penstock::train
