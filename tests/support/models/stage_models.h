// Small models, divided into stages for pipelines.
#pragma once

#include "support/dense.h"

#include <vector>

namespace penstock::test {

PipelineModel mlp();               //!< linear layers with dropout
PipelineModel frozen_mlp();        //!< every second stage is frozen, including the first
PipelineModel tied_transformer();  //!< the token embedding is tied to the head
PipelineModel batch_norm_cnn();    //!< convolutions with batch norm
PipelineModel skip_net();          //!< stage s sends a skip value to stage S-1-s
PipelineModel many_values();       //!< several inputs and outputs, also unused ones

std::vector<PipelineModel> all_models();

}  // namespace penstock::test
