// Parses the header with a state machine over the JSON tokens: it stores only validated values, detects
// duplicate names, and needs no memory for nesting.
#include "checkpoint/safetensors/header.h"

#include "base/io/json_reader.h"
#include "base/text.h"

#include <penstock/base/error.h>

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <limits>
#include <set>

namespace penstock::checkpoint {
namespace {

[[noreturn]] void fail(const std::string& where, const std::string& message) {
  throw ParseError(where + ": " + message, {}, "the file is damaged, truncated or not a safetensors file");
}

class HeaderReader final : public JsonHandler {
 public:
  explicit HeaderReader(const std::string& where) : where_(where) {}

  SafetensorsHeader take() { return std::move(header_); }

  void begin_object() override {
    switch (state_) {
      case State::Start:
        state_ = State::Names;
        return;
      case State::AfterName:
        state_ = in_metadata_ ? State::Metadata : State::Fields;
        fields_ = {};
        return;
      default:
        wrong("an object");
    }
  }

  void key(std::string& name) override {
    switch (state_) {
      case State::Names:
        if (!names_.insert(name).second) fail(where_, "duplicate tensor " + quote(name, 200));
        in_metadata_ = name == "__metadata__";
        if (!in_metadata_) header_.entries.push_back({.name = name});
        state_ = State::AfterName;
        return;
      case State::Metadata:
        if (header_.metadata.contains(name)) fail(where_, "duplicate __metadata__ key " + quote(name));
        key_ = name;
        state_ = State::MetadataValue;
        return;
      case State::Fields:
        state_ = field_of(name);
        return;
      default:
        wrong("a name");
    }
  }

  void string(std::string& text) override {
    if (state_ == State::MetadataValue) {
      header_.metadata.emplace(key_, text);
      state_ = State::Metadata;
      return;
    }
    if (state_ != State::Dtype) wrong("a string");
    const auto dtype = safetensors_dtype(text);
    if (!dtype) fail(where_, tensor() + " has the dtype " + quote(text) + ", which is not supported");
    entry().dtype = *dtype;
    state_ = State::Fields;
  }

  void begin_array() override {
    if (state_ == State::Shape) {
      state_ = State::Sizes;
    } else if (state_ == State::Offsets) {
      state_ = State::Ends;
    } else {
      wrong("a list");
    }
  }

  void unsigned_integer(std::uint64_t number) override {
    if (state_ == State::Sizes) {
      if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail(where_, str_cat(tensor(), " has a size of ", number, ", which exceeds 2^63-1"));
      }
      if (entry().shape.size() == kMaxDims) fail(where_, tensor() + " has too many dims");
      entry().shape.push_back(static_cast<std::int64_t>(number));
    } else if (state_ == State::Ends) {
      if (ends_ == 2) fail(where_, tensor() + " has more than two data_offsets");
      (ends_++ == 0 ? entry().begin : entry().end) = number;
    } else {
      wrong("a number");
    }
  }

  void end_array() override {
    if (state_ == State::Ends && ends_ != 2) fail(where_, tensor() + " has fewer than two data_offsets");
    state_ = State::Fields;  // only lists that are fields get here
  }

  void end_object() override {
    if (state_ == State::Fields && fields_.size() != 3) {
      fail(where_, tensor() + " lacks one of dtype, shape and data_offsets");
    }
    state_ = state_ == State::Names ? State::Start : State::Names;
  }

  void negative_integer(std::int64_t /*number*/) override { wrong("a negative number"); }
  void real(double /*number*/) override { wrong("a number that is not an integer or is too large"); }
  void boolean(bool /*truth*/) override { wrong("true or false"); }
  void null() override { wrong("null"); }
  [[noreturn]] void refuse(const std::string& problem) override {
    fail(where_, "the header cannot be read: " + problem);
  }

 private:
  //! The parser state: what was read last, which determines what may follow.
  enum class State {
    Start,
    Names,
    AfterName,
    Metadata,
    MetadataValue,
    Fields,
    Dtype,
    Shape,
    Sizes,
    Offsets,
    Ends
  };
  static constexpr std::size_t kMaxDims = 64;  // the limit of libtorch's kernels

  SafetensorsEntry& entry() { return header_.entries.back(); }
  std::string tensor() const { return "tensor " + quote(header_.entries.back().name, 200); }

  State field_of(const std::string& name) {
    if (!fields_.insert(name).second) fail(where_, tensor() + " has two fields " + quote(name));
    ends_ = 0;
    if (name == "dtype") return State::Dtype;
    if (name == "shape") return State::Shape;
    if (name == "data_offsets") return State::Offsets;
    fail(where_, tensor() + " has a field " + quote(name) + ", which the format does not define");
  }

  [[noreturn]] void wrong(const std::string& what) const {
    const std::string location = header_.entries.empty() ? "" : " at or after " + tensor();
    fail(where_, "the header contains " + what + " where the format does not allow it" + location);
  }

  const std::string& where_;
  SafetensorsHeader header_;
  std::set<std::string> names_;
  std::set<std::string> fields_;
  std::string key_;
  State state_ = State::Start;
  bool in_metadata_ = false;
  int ends_ = 0;
};

void check_offsets(const SafetensorsHeader& header, std::uint64_t data_size, const std::string& where) {
  std::uint64_t next = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    const std::string tensor = "tensor " + quote(entry.name, 200);
    const std::string location = str_cat(" lies at bytes ", entry.begin, " to ", entry.end);
    if (entry.end < entry.begin || entry.end > data_size) {
      fail(where, str_cat(tensor, location, ", but the file has only ", data_size, " bytes of data"));
    }
    if (entry.begin < next)
      fail(where, str_cat(tensor, location, " and overlaps the previous one, which ends at ", next));
    if (entry.begin > next)
      fail(where, str_cat(tensor, location, " and leaves a gap: the previous one ends at ", next));
    const auto wanted = checked_nbytes(entry.shape, entry.dtype);
    if (!wanted || *wanted != entry.nbytes()) {
      fail(where, tensor + location + ", which does not match its dtype and shape");
    }
    next = entry.end;
  }
  if (next != data_size) {
    fail(where, str_cat("the tensors end at byte ", next, ", the file has ", data_size));
  }
}

}  // namespace

std::optional<std::uint64_t> checked_nbytes(std::span<const std::int64_t> shape, at::ScalarType dtype) {
  constexpr std::uint64_t limit = std::numeric_limits<std::int64_t>::max();
  // A size of 0 makes the tensor empty, but the other sizes must still be valid.
  std::uint64_t bytes = c10::elementSize(dtype);
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      empty = true;
      continue;
    }
    if (bytes > limit / static_cast<std::uint64_t>(size)) return std::nullopt;
    bytes *= static_cast<std::uint64_t>(size);
  }
  return empty ? 0 : bytes;
}

std::uint64_t safetensors_header_length(std::span<const std::uint8_t> prefix, std::uint64_t file_size,
                                        const std::string& where) {
  if (file_size < kSafetensorsPrefix || prefix.size() < kSafetensorsPrefix) {
    fail(where, "the file is too short to be a safetensors file");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kSafetensorsPrefix; ++i)
    length |= static_cast<std::uint64_t>(prefix[i]) << (8 * i);
  if (length > kMaxSafetensorsHeader) {
    fail(where, str_cat("a header of ", length, " bytes is longer than the format allows"));
  }
  if (length > file_size - kSafetensorsPrefix) {
    fail(where, str_cat("the header of ", length, " bytes extends beyond the end of the file"));
  }
  return length;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_size,
                                           const std::string& where) {
  if (!text.starts_with('{')) fail(where, "the header does not begin with {");
  HeaderReader reader(where);
  read_json(text, reader);
  SafetensorsHeader header = reader.take();
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_offsets(header, data_size, where);
  return header;
}

}  // namespace penstock::checkpoint
