// Transfers over a group. The tensors of a message are sent one after the other under one tag. If the
// receiver cannot know the metadata, its size and then the metadata are sent first under the same tag
// (docs/adr/0006).
#include "runtime/transfer/mailbox.h"

#include <penstock/base/error.h>

#include <ATen/ops/empty.h>

#include <chrono>
#include <cstring>

namespace penstock::runtime {
namespace {

// Returns the elements in memory order, for a tensor without gaps.
at::Tensor flat(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : tensor.as_strided({tensor.numel()}, {1});
}

at::Tensor laid_out_as(const value::TensorMeta& meta, const at::Tensor& tensor) {
  if (tensor.strides() == at::IntArrayRef(meta.stride)) return flat(tensor);
  const at::Tensor copy = meta.empty(tensor.device());
  copy.detach().copy_(tensor);
  return flat(copy.detach());
}

const char* way_text(Direction way) {
  return way == Direction::Forward ? "value" : "gradient";
}

}  // namespace

Mailbox::Mailbox(const comm::Group& group, int edges, const StepShapes& shapes, const MessageMetaCache& known,
                 BufferPool& pool)
    : group_(group),
      shapes_(shapes),
      known_(known),
      pool_(pool),
      slots_(static_cast<std::size_t>(edges) * 2 * shapes.signatures.size()) {}

Mailbox::~Mailbox() {
  comm::Work::detach_all(std::move(small_sends_));
}

std::size_t Mailbox::number(int edge, Direction way, MicrobatchId microbatch) const {
  const std::size_t row = static_cast<std::size_t>(edge) * 2 + static_cast<std::size_t>(way);
  return row * shapes_.signatures.size() + microbatch.index();
}

int Mailbox::tag(int edge, Direction way, MicrobatchId microbatch) const {
  const auto place = static_cast<std::size_t>(edge) * shapes_.signatures.size() + microbatch.index();
  return static_cast<int>(place * 2 + static_cast<std::size_t>(way));
}

Mailbox::Slot& Mailbox::open(int edge, Direction way, MicrobatchId microbatch) {
  std::unique_ptr<Slot>& slot = slots_[number(edge, way, microbatch)];
  if (slot) throw ScheduleError(std::string("a ") + way_text(way) + " is produced or received twice");
  slot = std::make_unique<Slot>();
  return *slot;
}

void Mailbox::put(int edge, Direction way, MicrobatchId microbatch, Message message) {
  Slot& slot = open(edge, way, microbatch);
  slot.message = std::move(message);
  slot.full = true;
}

std::shared_ptr<const MessageMeta> Mailbox::form_for(int edge, Direction way, MicrobatchId microbatch,
                                                     const Message& message) {
  const std::uint64_t signature = shapes_.signatures[microbatch.index()];
  if (shapes_.may_vary) return std::make_shared<const MessageMeta>(MessageMeta::of(message));
  std::shared_ptr<const MessageMeta> form = known_.find(edge, way, signature);
  if (!form) form = learnt_.find(edge, way, signature);
  if (!form) {
    form = std::make_shared<const MessageMeta>(MessageMeta::of(message));
    learnt_.add(edge, way, signature, form);
    return form;
  }
  if (form->fits(message)) return form;
  throw ShapeError(
      std::string("a ") + way_text(way) +
          " between stages changed its metadata for the same batch shapes: " + form->difference(message),
      {}, "use ShapeMode::Dynamic, which sends the shapes with every message");
}

void Mailbox::send(int edge, Direction way, MicrobatchId microbatch, int to) {
  const Message message = take(edge, way, microbatch);
  const int tag = this->tag(edge, way, microbatch);
  const auto form = form_for(edge, way, microbatch, message);
  if (shapes_.forms_travel[microbatch.index()]) send_form(*form, to, tag);
  for (std::size_t i = 0; i < form->tensors.size(); ++i) {
    if (!form->tensors[i] || form->tensors[i]->numel() == 0) continue;
    const at::Tensor tensor = laid_out_as(*form->tensors[i], message.leaves[i].toTensor().detach());
    let_go(group_.isend(tensor, to, tag), tensor.nbytes());
  }
}

// A detached send is freed by the reaper thread when it completes. Waking that thread costs more than a small
// message, so small sends are detached in batches, when most of them have completed.
void Mailbox::let_go(comm::Work work, std::size_t bytes) {
  constexpr std::size_t small = 64 << 10U, many = 32;
  if (bytes > small) return work.detach();
  small_sends_.push_back(std::move(work));
  if (small_sends_.size() == many) comm::Work::detach_all(std::exchange(small_sends_, {}));
}

void Mailbox::send_form(const MessageMeta& form, int to, int tag) {
  const std::vector<std::uint8_t> bytes = form.serialize();
  const auto size = static_cast<std::int64_t>(bytes.size());
  const at::Tensor length = at::empty({1}, at::kLong);
  *length.mutable_data_ptr<std::int64_t>() = size;
  const at::Tensor content = at::empty({size}, at::kByte);
  std::memcpy(content.mutable_data_ptr<std::uint8_t>(), bytes.data(), bytes.size());
  group_.isend(length, to, tag).detach();
  group_.isend(content, to, tag).detach();
}

std::size_t Mailbox::bytes_of(int edge, Direction way, MicrobatchId microbatch) const {
  const auto m = microbatch.index();
  if (shapes_.forms_travel[m]) return sizeof(std::int64_t);
  const auto form = known_.find(edge, way, shapes_.signatures[m]);
  return form ? form->nbytes() : 0;
}

void Mailbox::post(int edge, Direction way, MicrobatchId microbatch, int from, at::Device device) {
  Slot& slot = open(edge, way, microbatch);
  slot.from = from;
  slot.device = device;
  const auto m = microbatch.index();
  const int tag = this->tag(edge, way, microbatch);
  if (shapes_.forms_travel[m]) {
    slot.form_size = at::empty({1}, at::kLong);
    slot.works.push_back(group_.irecv(slot.form_size, from, tag));
    return;
  }
  slot.form = known_.find(edge, way, shapes_.signatures[m]);
  if (!slot.form) throw ScheduleError(std::string("the metadata of a ") + way_text(way) + " is not known");
  post_tensors(slot, tag);
}

void Mailbox::receive_form(Slot& slot, int tag) {
  slot.works.front().wait();
  slot.works.clear();
  const at::Tensor content = at::empty({*slot.form_size.const_data_ptr<std::int64_t>()}, at::kByte);
  group_.irecv(content, slot.from, tag).wait();
  slot.form = std::make_shared<const MessageMeta>(MessageMeta::deserialize(
      {content.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(content.numel())}));
}

void Mailbox::post_tensors(Slot& slot, int tag) {
  const MessageMeta& form = *slot.form;
  slot.message.structure = form.structure;
  slot.message.leaves = form.others;
  slot.message.spread = form.spread;
  for (std::size_t i = 0; i < form.tensors.size(); ++i) {
    if (!form.tensors[i]) continue;
    at::Tensor buffer = pool_.take(*form.tensors[i], slot.device);
    if (buffer.numel() > 0) slot.works.push_back(group_.irecv(flat(buffer), slot.from, tag));
    slot.message.leaves[i] = std::move(buffer);
  }
}

Message Mailbox::take(int edge, Direction way, MicrobatchId microbatch) {
  std::unique_ptr<Slot>& place = slots_[number(edge, way, microbatch)];
  if (!place)
    throw ScheduleError(std::string("a ") + way_text(way) + " is used but was neither produced nor received");
  Slot& slot = *place;
  if (!slot.full) wait_for(slot, edge, way, microbatch);
  Message message = std::move(slot.message);
  place.reset();
  return message;
}

void Mailbox::wait_for(Slot& slot, int edge, Direction way, MicrobatchId microbatch) {
  const auto start = std::chrono::steady_clock::now();
  const int tag = this->tag(edge, way, microbatch);
  if (slot.form_size.defined()) {
    receive_form(slot, tag);
    post_tensors(slot, tag);
    if (!shapes_.may_vary) learnt_.add(edge, way, shapes_.signatures[microbatch.index()], slot.form);
  }
  for (comm::Work& work : slot.works) work.wait();
  for (std::size_t i = 0; i < slot.form->tensors.size(); ++i) {
    const auto& meta = slot.form->tensors[i];
    if (meta && meta->requires_grad) slot.message.leaves[i].toTensor().requires_grad_(true);
  }
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace penstock::runtime
