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
  return tensor.is_contiguous() ? tensor : tensor.detach().as_strided({tensor.numel()}, {1});
}

at::Tensor flatten_as(const value::TensorMeta& meta, const at::Tensor& tensor) {
  if (tensor.strides() == at::IntArrayRef(meta.stride)) return flat(tensor);
  const at::Tensor copy = meta.empty(tensor.device());
  copy.detach().copy_(tensor.detach());
  return flat(copy.detach());
}

const char* way_text(Direction way) {
  return way == Direction::Forward ? "value" : "gradient";
}

}  // namespace

Mailbox::Mailbox(const comm::Group& group, int edges, const StepShapes& shapes, const MessageMetaCache& known,
                 BufferPool& pool, ActionClock& clock)
    : group_(group),
      shapes_(shapes),
      known_(known),
      pool_(pool),
      slots_(static_cast<std::size_t>(edges) * 2 * shapes.signatures.size()),
      clock_(clock) {}

Mailbox::~Mailbox() {
  comm::Work::detach_all(std::move(small_sends_));
}

std::size_t Mailbox::number(int edge, Direction way, MicrobatchId microbatch) const {
  const std::size_t row = static_cast<std::size_t>(edge) * 2 + static_cast<std::size_t>(way);
  return row * shapes_.signatures.size() + microbatch.index();
}

int Mailbox::tag(int edge, Direction way, MicrobatchId microbatch) const {
  const auto index = static_cast<std::size_t>(edge) * shapes_.signatures.size() + microbatch.index();
  return static_cast<int>(index * 2 + static_cast<std::size_t>(way));
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

std::shared_ptr<const MessageMeta> Mailbox::meta_for(int edge, Direction way, MicrobatchId microbatch,
                                                     const Message& message) {
  const std::uint64_t signature = shapes_.signatures[microbatch.index()];
  if (shapes_.may_vary) return std::make_shared<const MessageMeta>(MessageMeta::of(message));
  std::shared_ptr<const MessageMeta> meta = known_.find(edge, way, signature);
  if (!meta) meta = learned_.find(edge, way, signature);
  if (!meta) {
    meta = std::make_shared<const MessageMeta>(MessageMeta::of(message));
    learned_.add(edge, way, signature, meta);
    return meta;
  }
  if (meta->fits(message)) return meta;
  throw ShapeError(
      std::string("the metadata of a ") + way_text(way) +
          " between stages changed although the batch shapes did not: " + meta->difference(message),
      {}, "use ShapeMode::Dynamic, which sends the shapes with every message");
}

void Mailbox::send(int edge, Direction way, MicrobatchId microbatch, int to) {
  const Message message = take(edge, way, microbatch);
  const int tag = this->tag(edge, way, microbatch);
  const auto meta = meta_for(edge, way, microbatch, message);
  if (shapes_.sends_meta[microbatch.index()]) send_meta(*meta, to, tag);
  for (std::size_t i = 0; i < meta->tensors.size(); ++i) {
    if (!meta->tensors[i] || meta->tensors[i]->numel() == 0) continue;
    const at::Tensor tensor = flatten_as(*meta->tensors[i], message.leaves[i].toTensor());
    release(group_.isend(tensor, to, tag), tensor.nbytes());
  }
}

// A detached send is freed by the reaper thread when it completes. Waking that thread costs more than a small
// message, so small sends are detached in batches, when most of them have completed.
void Mailbox::release(comm::Work work, std::size_t bytes) {
  constexpr std::size_t small = 64 << 10U, many = 32;
  if (bytes > small) return work.detach();
  small_sends_.push_back(std::move(work));
  if (small_sends_.size() == many) comm::Work::detach_all(std::exchange(small_sends_, {}));
}

void Mailbox::send_meta(const MessageMeta& meta, int to, int tag) {
  const std::vector<std::uint8_t> bytes = meta.serialize();
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
  if (shapes_.sends_meta[m]) return sizeof(std::int64_t);
  const auto meta = known_.find(edge, way, shapes_.signatures[m]);
  return meta ? meta->nbytes() : 0;
}

void Mailbox::post(int edge, Direction way, MicrobatchId microbatch, int from, at::Device device) {
  Slot& slot = open(edge, way, microbatch);
  slot.from = from;
  slot.device = device;
  const auto m = microbatch.index();
  const int tag = this->tag(edge, way, microbatch);
  if (shapes_.sends_meta[m]) {
    slot.meta_size = at::empty({1}, at::kLong);
    slot.works.push_back(group_.irecv(slot.meta_size, from, tag));
    if (group_.send_mode() == schedule::SendMode::Ordered) learn_meta(slot, edge, way, microbatch);
    return;
  }
  slot.meta = known_.find(edge, way, shapes_.signatures[m]);
  if (!slot.meta) throw ScheduleError(std::string("the metadata of a ") + way_text(way) + " is not known");
  post_tensors(slot, tag);
}

void Mailbox::receive_meta(Slot& slot, int tag) {
  slot.works.front().wait();
  slot.works.clear();
  const at::Tensor content = at::empty({*slot.meta_size.const_data_ptr<std::int64_t>()}, at::kByte);
  group_.irecv(content, slot.from, tag).wait();
  slot.meta = std::make_shared<const MessageMeta>(MessageMeta::deserialize(
      {content.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(content.numel())}));
}

// Receives the metadata of a message, then posts its tensors.
void Mailbox::learn_meta(Slot& slot, int edge, Direction way, MicrobatchId microbatch) {
  const int tag = this->tag(edge, way, microbatch);
  receive_meta(slot, tag);
  slot.meta_size = at::Tensor();
  post_tensors(slot, tag);
  if (!shapes_.may_vary) learned_.add(edge, way, shapes_.signatures[microbatch.index()], slot.meta);
}

void Mailbox::post_tensors(Slot& slot, int tag) {
  const MessageMeta& meta = *slot.meta;
  slot.message.structure = meta.structure;
  slot.message.leaves = meta.others;
  slot.message.dtensors = meta.dtensors;
  for (std::size_t i = 0; i < meta.tensors.size(); ++i) {
    if (!meta.tensors[i]) continue;
    at::Tensor buffer = pool_.take(*meta.tensors[i], slot.device);
    if (buffer.numel() > 0) slot.works.push_back(group_.irecv(flat(buffer), slot.from, tag));
    slot.message.leaves[i] = std::move(buffer);
  }
}

Message Mailbox::take(int edge, Direction way, MicrobatchId microbatch) {
  std::unique_ptr<Slot>& entry = slots_[number(edge, way, microbatch)];
  if (!entry)
    throw ScheduleError(std::string("a ") + way_text(way) + " is used but was neither produced nor received");
  Slot& slot = *entry;
  if (!slot.full) wait_for(slot, edge, way, microbatch);
  Message message = std::move(slot.message);
  entry.reset();
  return message;
}

void Mailbox::wait_for(Slot& slot, int edge, Direction way, MicrobatchId microbatch) {
  const auto start = std::chrono::steady_clock::now();
  if (slot.meta_size.defined()) learn_meta(slot, edge, way, microbatch);
  for (comm::Work& work : slot.works) work.wait();
  for (std::size_t i = 0; i < slot.meta->tensors.size(); ++i) {
    const auto& meta = slot.meta->tensors[i];
    if (meta && meta->requires_grad) slot.message.leaves[i].toTensor().requires_grad_(true);
  }
  clock_.inputs_arrived(std::chrono::steady_clock::now() - start);
}

}  // namespace penstock::runtime
