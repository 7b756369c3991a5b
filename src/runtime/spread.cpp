// Taking distributed tensors apart for a message, and putting them together again.
#include "runtime/spread.h"

#include "tensor/autograd.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/core/grad_mode.h>

#include <sstream>

namespace penstock {
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

AxisPlacement read_placement(ByteReader& in) {
  const auto kind = static_cast<AxisPlacement::Kind>(in.u8());
  const std::int64_t more = in.signed_int();
  switch (kind) {
    case AxisPlacement::Kind::Replicate:
      return Replicate();
    case AxisPlacement::Kind::Shard:
      return Shard(more);
    case AxisPlacement::Kind::Partial:
      return Partial(static_cast<ReduceOp>(more));
  }
  in.fail("not a placement");
}

std::string mesh_text(const SpreadForm& form) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < form.axes.size(); ++i)
    parts.push_back(form.axes[i] + "=" + std::to_string(form.shape[i]));
  return "DeviceMesh(" + join(parts, ", ") + ")";
}

DeviceMesh mesh_for(const SpreadForm& form, const PipelineStage& stage) {
  bool elsewhere = false;
  for (const DeviceMesh& mesh : stage.meshes()) {
    if (mesh.names() != form.axes || mesh.shape() != form.shape) continue;
    bool same = true;
    for (int axis = 0; axis < mesh.ndim(); ++axis)
      same = same && mesh.coordinate(axis) == form.coordinate[static_cast<std::size_t>(axis)];
    if (same) return mesh;
    elsewhere = true;
  }
  if (elsewhere) {
    throw UsageError("a distributed value came from a rank that stands elsewhere in " + mesh_text(form) +
                         " than this one: " + form.text(),
                     {.stage = stage.index()},
                     "a pipeline's group must be the ranks with the same coordinates on all other axes");
  }
  throw UsageError(
      "the stage is given a distributed value and has no mesh of these axes: " + form.text(),
      {.stage = stage.index()},
      "give StageOptions::mesh, or let the stage before give full_tensor or to_local of its result");
}

}  // namespace

std::optional<SpreadForm> SpreadForm::of(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return std::nullopt;
  const DeviceMesh mesh = mesh_of(tensor);
  SpreadForm form{mesh.names(), mesh.shape(), {}, placements_of(tensor), tensor.sizes().vec()};
  for (int axis = 0; axis < mesh.ndim(); ++axis) form.coordinate.push_back(mesh.coordinate(axis));
  return form;
}

std::string SpreadForm::text() const {
  std::ostringstream out;
  out << at::IntArrayRef(sizes) << " on " << mesh_text(*this) << " with " << penstock::text(placements);
  return out.str();
}

void write(ByteWriter& out, const SpreadForm& form) {
  const auto numbers = [&](const std::vector<std::int64_t>& list) {
    write_list(out, list.size(), [&](std::size_t i) { out.signed_int(list[i]); });
  };
  write_list(out, form.axes.size(), [&](std::size_t i) { out.text(form.axes[i]); });
  numbers(form.shape);
  numbers(form.coordinate);
  write_list(out, form.placements.size(), [&](std::size_t i) {
    const AxisPlacement& placement = form.placements[i];
    out.u8(static_cast<std::uint8_t>(placement.kind()));
    out.signed_int(placement.is_partial() ? static_cast<std::int64_t>(placement.reduce()) : placement.dim());
  });
  numbers(form.sizes);
}

SpreadForm read_spread_form(ByteReader& in) {
  SpreadForm form;
  form.axes.resize(in.count());
  for (std::string& axis : form.axes) axis = in.text();
  form.shape = read_numbers(in);
  form.coordinate = read_numbers(in);
  for (std::size_t i = in.count(2); i > 0; --i) form.placements.push_back(read_placement(in));
  form.sizes = read_numbers(in);
  return form;
}

at::Tensor put_together(const at::Tensor& part, const SpreadForm& form, const PipelineStage& stage) {
  const DeviceMesh mesh = mesh_for(form, stage);
  at::Tensor whole;
  {
    const at::NoGradGuard no_grad;
    whole = from_local(part.detach(), mesh, form.placements, form.sizes);
  }
  return whole.set_requires_grad(part.requires_grad());
}

at::Tensor gradient_part(const at::Tensor& grad, const at::Tensor& value) {
  if (!grad.defined() || !is_dtensor(value)) return grad;
  const at::NoGradGuard no_grad;
  const at::Tensor whole = gradient_on(grad, mesh_of(value).state());
  return local_of(redistribute(whole, gradient_placements(placements_of(value))));
}

std::unique_ptr<const SentValue> SentValue::of(const at::Tensor& value) {
  if (!is_dtensor(value)) return nullptr;
  return std::make_unique<const SentValue>(
      SentValue{mesh_of(value), placements_of(value), value.sizes().vec()});
}

at::Tensor gradient_of_part(const at::Tensor& part, const SentValue* value) {
  if (value == nullptr) return part;
  const at::NoGradGuard no_grad;
  return from_local(part, value->mesh, gradient_placements(value->placements), value->sizes);
}

}  // namespace penstock
