// Data parallelism for the stages of a pipeline: gradients are averaged over the replicas while the last
// backward of a step runs.
#pragma once

#include "train/mesh.h"
#include "train/watched_stage.h"

#include <penstock/runtime/data_parallel.h>

#include <map>
#include <memory>

namespace penstock::train {

//! Null where there is one replica.
std::shared_ptr<DataParallel> make_replicas(const Mesh& mesh,
                                            const std::map<int, std::shared_ptr<WatchedStage>>& stages);

}  // namespace penstock::train
