// The bucketer of replicated data parallelism: gradients are laid into buckets as the backward adds them,
// full buckets are reduced while it goes on, always in the same order. Each bucket carries, behind the
// gradients, one number for each of them that says whether this rank has it: so every rank learns which
// parameters nobody used, without another message.
#pragma once

#include "parallel/leaf_hooks.h"

#include <penstock/comm/group.h>
#include <penstock/comm/work.h>
#include <penstock/parallel/replicate.h>
#include <penstock/tensor/flatten.h>

#include <memory>
#include <string>
#include <vector>

namespace penstock {

class GradReducer : public std::enable_shared_from_this<GradReducer> {
 public:
  //! `parameters`: those that take a gradient, each once.
  GradReducer(std::vector<NamedTensor> parameters, Group group, const ReplicateOptions& options);
  //! Puts the hooks on; apart from construction because they hold a weak pointer.
  void attach();

  bool sync() const { return sync_; }
  void set_sync(bool sync) { sync_ = sync; }
  void find_unused(const std::vector<at::Tensor>& outputs);
  void begin_by_hand();
  void reduce();
  void recover(const Group& group);

  std::vector<std::vector<std::string>> names() const;

 private:
  struct Member {
    std::size_t parameter;
    at::Tensor view;  //!< of the bucket's gradients, in the shape of the parameter (of this rank's part)
    bool ready = false;
    bool present = false;  //!< this rank has a gradient
  };
  struct Bucket {
    std::vector<Member> members;
    std::int64_t elements = 0;  //!< of gradients; one more for each member follows
    at::Tensor flat;
    at::Tensor sent;  //!< what is reduced: `flat`, or its copy in the type of communication
    Work work;
    std::size_t waiting = 0;
    bool launched = false;
  };
  struct Place {
    std::size_t bucket, member;
  };

  void allocate(Bucket& bucket);
  void begin();
  void added(std::size_t parameter);
  void mark_ready(std::size_t parameter);
  void collect(Bucket& bucket, std::size_t member);
  void launch_full();
  void launch(Bucket& bucket);
  void finish();
  void install(Bucket& bucket);
  void abandon() noexcept;

  std::vector<NamedTensor> parameters_;
  std::vector<std::optional<DTensorForm>> forms_;  //!< of the parameters that are distributed
  Group group_;
  ReplicateOptions options_;
  LeafHooks hooks_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;           //!< by parameter
  std::vector<std::size_t> unreached_;  //!< by the next backward, as far as is known
  std::size_t next_ = 0;                //!< the bucket that is launched next
  bool sync_ = true;
  bool active_ = false;   //!< a reduction has begun
  bool by_hand_ = false;  //!< and ends with `reduce`, not with the backward
  bool watched_ = false;  //!< the end of the backward that runs will be told
};

}  // namespace penstock
