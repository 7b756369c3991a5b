// One Replica for each stage of this rank.
#include "train/replicas.h"

#include <penstock/parallel/replicate.h>

#include <optional>

namespace penstock::train {
namespace {

class Replicas : public DataParallel {
 public:
  Replicas(const Mesh& mesh, const std::map<int, std::shared_ptr<WatchedStage>>& stages) {
    for (const auto& [index, stage] : stages)
      replicas_.emplace(StageId(index), std::make_unique<OfStage>(*stage, mesh.replicas));
  }

  void unshard(StageId) override {}
  void reshard(StageId) override {}
  void before_backward(StageId stage, bool last) override {
    if (last) replicas_.at(stage)->replica.begin();
  }
  void reduce_grad(StageId stage) override { replicas_.at(stage)->replica.reduce(); }

 private:
  struct OfStage {
    OfStage(const StageModule& stage, const Group& group)
        : replica(replicate(stage, group)), quiet(replica.no_sync()) {}
    Replica replica;
    Replica::NoSync quiet;  //!< reductions happen where the program says, not after every microbatch
  };
  std::map<StageId, std::unique_ptr<OfStage>> replicas_;
};

}  // namespace

std::shared_ptr<DataParallel> make_replicas(const Mesh& mesh,
                                            const std::map<int, std::shared_ptr<WatchedStage>>& stages) {
  if (mesh.replicas.size() == 1) return nullptr;
  return std::make_shared<Replicas>(mesh, stages);
}

}  // namespace penstock::train
