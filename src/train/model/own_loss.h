// Losses that exported models compute themselves.
#pragma once

#include <penstock/graph/ir.h>
#include <penstock/train/data.h>
#include <penstock/train/options.h>

#include <optional>

namespace penstock::train {

//! The input of the labels if its name is not given.
inline constexpr const char* kLabels = "labels";

//! What a loss that the model computes is a mean over.
struct OwnLoss {
  LossMean mean = LossMean::Rows;      //!< never Auto
  std::optional<LabelInput> labels{};  //!< unless it is a mean over rows
};
//! Decides what the loss is a mean over, if `mean` is Auto. `labels` names the input of the labels; by
//! default it is that of the name `labels`, if there is one. Throws UsageError if the model has no labels of
//! which the loss can be a mean, or if another input looks like labels and nothing says whether it has them.
OwnLoss resolve_own_loss(const graph::Graph& graph, LossMean mean, const std::optional<std::string>& labels);

}  // namespace penstock::train
