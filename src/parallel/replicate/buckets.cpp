// Assignment of gradients to buckets.
#include "parallel/replicate/buckets.h"

#include <algorithm>
#include <utility>

namespace penstock::parallel {
namespace {

struct Open {
  at::ScalarType type;
  at::Device device;
  std::int64_t limit;
  std::int64_t bytes = 0;
  BucketPlan plan{};
};

}  // namespace

std::vector<BucketPlan> plan_buckets(const std::vector<at::Tensor>& parameters, std::int64_t first_bytes,
                                     std::int64_t bytes) {
  std::vector<BucketPlan> closed;
  std::vector<Open> open;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const at::Tensor& parameter = parameters[i];
    auto found = std::find_if(open.begin(), open.end(), [&](const Open& bucket) {
      return bucket.type == parameter.scalar_type() && bucket.device == parameter.device();
    });
    if (found == open.end())
      found = open.insert(found, {parameter.scalar_type(), parameter.device(), std::min(first_bytes, bytes)});
    found->plan.members.push_back(i);
    found->bytes += static_cast<std::int64_t>(parameter.nbytes());
    if (found->bytes < found->limit) continue;
    closed.push_back(std::exchange(found->plan, {}));
    found->bytes = 0;
    found->limit = bytes;
  }
  // The remaining buckets hold the first parameters. Sort by the parameter that the backward reaches last.
  std::sort(open.begin(), open.end(), [](const Open& a, const Open& b) {
    const auto last = [](const Open& bucket) {
      return bucket.plan.members.empty() ? 0 : bucket.plan.members.back();
    };
    return last(a) > last(b);
  });
  for (Open& bucket : open) {
    if (!bucket.plan.members.empty()) closed.push_back(std::move(bucket.plan));
  }
  return closed;
}

}  // namespace penstock::parallel
