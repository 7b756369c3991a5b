// Takes distributed tensors apart for messages and rebuilds them.
#include "runtime/transfer/dtensor_message.h"

#include "base/text.h"
#include "tensor/dispatch/autograd.h"
#include "tensor/layout/mesh_impl.h"

#include <penstock/base/error.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/core/grad_mode.h>

#include <sstream>

namespace penstock::runtime {
namespace {

template <class Write>
void write_list(ByteWriter& out, std::size_t count, const Write& item) {
  out.unsigned_int(count);
  for (std::size_t i = 0; i < count; ++i) item(i);
}

std::vector<std::int64_t> read_numbers(ByteReader& in) {
  std::vector<std::int64_t> numbers(in.count());
  for (std::int64_t& number : numbers) number = in.signed_int();
  return numbers;
}

tensor::AxisPlacement read_placement(ByteReader& in) {
  const auto kind = static_cast<tensor::AxisPlacement::Kind>(in.u8());
  const std::int64_t more = in.signed_int();
  switch (kind) {
    case tensor::AxisPlacement::Kind::Replicate:
      return tensor::Replicate();
    case tensor::AxisPlacement::Kind::Shard:
      return tensor::Shard(more);
    case tensor::AxisPlacement::Kind::Partial:
      return tensor::Partial(static_cast<comm::ReduceOp>(more));
  }
  in.fail("not a placement");
}

std::string mesh_text(const DTensorMeta& meta) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < meta.axes.size(); ++i)
    parts.push_back(str_cat(meta.axes[i], "=", meta.shape[i]));
  return "DeviceMesh(" + join(parts, ", ") + ")";
}

tensor::DeviceMesh mesh_for(const DTensorMeta& meta, const PipelineStage& stage) {
  bool elsewhere = false;
  for (const tensor::DeviceMesh& mesh : stage.meshes()) {
    if (mesh.names() != meta.axes || mesh.shape() != meta.shape) continue;
    bool same = true;
    for (int axis = 0; axis < mesh.ndim(); ++axis)
      same = same && mesh.coordinate(axis) == meta.coordinate[static_cast<std::size_t>(axis)];
    if (same) return mesh;
    elsewhere = true;
  }
  if (elsewhere) {
    throw UsageError("the sender of a distributed value has different coordinates in " + mesh_text(meta) +
                         " from this rank: " + to_string(meta),
                     {.stage = stage.index()},
                     "make the pipeline's group from the ranks with the same coordinates on all other axes");
  }
  throw UsageError(
      "the stage received a distributed value but has no mesh with these axes: " + to_string(meta),
      {.stage = stage.index()},
      "set StageOptions::mesh, or return full_tensor or to_local of the result from the previous stage");
}

}  // namespace

std::optional<DTensorMeta> DTensorMeta::of(const at::Tensor& tensor) {
  if (!tensor::is_dtensor(tensor)) return std::nullopt;
  const tensor::DeviceMesh mesh = tensor::mesh_of(tensor);
  DTensorMeta meta{mesh.names(), mesh.shape(), {}, tensor::placements_of(tensor), tensor.sizes().vec()};
  for (int axis = 0; axis < mesh.ndim(); ++axis) meta.coordinate.push_back(mesh.coordinate(axis));
  return meta;
}

std::string to_string(const DTensorMeta& meta) {
  std::ostringstream out;
  out << at::IntArrayRef(meta.sizes) << " on " << mesh_text(meta) << " with "
      << tensor::to_string(meta.placements);
  return out.str();
}

void write(ByteWriter& out, const DTensorMeta& meta) {
  const auto numbers = [&](const std::vector<std::int64_t>& list) {
    write_list(out, list.size(), [&](std::size_t i) { out.signed_int(list[i]); });
  };
  write_list(out, meta.axes.size(), [&](std::size_t i) { out.text(meta.axes[i]); });
  numbers(meta.shape);
  numbers(meta.coordinate);
  write_list(out, meta.placements.size(), [&](std::size_t i) {
    const tensor::AxisPlacement& placement = meta.placements[i];
    out.u8(static_cast<std::uint8_t>(placement.kind()));
    out.signed_int(placement.is_partial() ? static_cast<std::int64_t>(placement.reduce()) : placement.dim());
  });
  numbers(meta.sizes);
}

DTensorMeta read_dtensor_meta(ByteReader& in) {
  DTensorMeta meta;
  meta.axes.resize(in.count());
  for (std::string& axis : meta.axes) axis = in.text();
  meta.shape = read_numbers(in);
  meta.coordinate = read_numbers(in);
  for (std::size_t i = in.count(2); i > 0; --i) meta.placements.push_back(read_placement(in));
  meta.sizes = read_numbers(in);
  return meta;
}

at::Tensor assemble_dtensor(const at::Tensor& part, const DTensorMeta& meta, const PipelineStage& stage) {
  const tensor::DeviceMesh mesh = mesh_for(meta, stage);
  at::Tensor dtensor;
  {
    const at::NoGradGuard no_grad;
    dtensor = from_local(part.detach(), mesh, meta.placements, meta.sizes);
  }
  return dtensor.set_requires_grad(part.requires_grad());
}

at::Tensor local_gradient(const at::Tensor& grad, const at::Tensor& value) {
  if (!grad.defined() || !tensor::is_dtensor(value)) return grad;
  const at::NoGradGuard no_grad;
  const at::Tensor dtensor = gradient_on(grad, tensor::Access::impl(tensor::mesh_of(value)));
  return tensor::local_of(redistribute(dtensor, gradient_placements(tensor::placements_of(value))));
}

std::unique_ptr<const SentDTensor> SentDTensor::of(const at::Tensor& value) {
  if (!tensor::is_dtensor(value)) return nullptr;
  return std::make_unique<const SentDTensor>(
      SentDTensor{tensor::mesh_of(value), tensor::placements_of(value), value.sizes().vec()});
}

at::Tensor assemble_gradient(const at::Tensor& part, const SentDTensor* value) {
  if (value == nullptr) return part;
  const at::NoGradGuard no_grad;
  return from_local(part, value->mesh, gradient_placements(value->placements), value->sizes);
}

}  // namespace penstock::runtime
