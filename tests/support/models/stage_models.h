// Small models of the kinds that pipelines meet, as stages.
#pragma once

#include "runtime/support/dense.h"

#include <vector>

namespace penstock::test {

PipelineModel mlp();               //!< linear layers with dropout
PipelineModel frozen_mlp();        //!< every second stage takes no gradient, the first one too
PipelineModel tied_transformer();  //!< token embedding in the first stage, shared with the head in the last
PipelineModel batch_norm_cnn();
PipelineModel skip_net();  //!< stage s feeds stage S-1-s, as in a U-Net
PipelineModel
many_values();  //!< several inputs and outputs, integers, None, unused values, a mask for every stage

std::vector<PipelineModel> all_models();

}  // namespace penstock::test
