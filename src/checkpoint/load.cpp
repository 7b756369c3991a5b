// Loads pieces: first compares all pieces of all ranks with the checkpoint, then reads the elements.
#include "base/io/bytes.h"
#include "base/text.h"
#include "checkpoint/commit/open_checkpoint.h"
#include "checkpoint/pieces/local_pieces.h"
#include "checkpoint/pieces/read_region.h"
#include "checkpoint/pieces/regions.h"

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/value/tensor_meta.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <functional>
#include <set>

namespace penstock::checkpoint {
namespace {

//! The result of comparing the pieces of one or all ranks with a checkpoint. Sets, because several ranks may
//! request the same tensor.
struct Findings {
  std::set<std::string> missing, reshaped, wrong;
  std::set<std::pair<std::string, std::string>> requested;  //!< name and state, as stored
  bool asks_states = false;

  std::string packed() const {
    ByteWriter writer;
    for (const auto* titles : {&missing, &reshaped, &wrong}) {
      writer.unsigned_int(titles->size());
      for (const std::string& title : *titles) writer.text(title);
    }
    writer.unsigned_int(requested.size());
    for (const auto& [name, state] : requested) {
      writer.text(name);
      writer.text(state);
    }
    writer.u8(asks_states ? 1 : 0);
    const auto bytes = writer.take();
    return {bytes.begin(), bytes.end()};
  }

  void add(const std::string& packed) {
    ByteReader reader({reinterpret_cast<const std::uint8_t*>(packed.data()), packed.size()});
    for (auto* titles : {&missing, &reshaped, &wrong}) {
      for (std::size_t n = reader.count(); n > 0; --n) titles->insert(reader.text());
    }
    for (std::size_t n = reader.count(2); n > 0; --n) {
      std::string name = reader.text();
      requested.emplace(std::move(name), reader.text());
    }
    asks_states = reader.u8() != 0 || asks_states;
  }
};

//! Returns why a piece is invalid; empty if it is valid.
std::string local_problem(const Piece& piece) {
  if (!piece.local.defined()) return "no tensor to load into";
  const std::string problem = region_problem(piece.region, piece.shape);
  if (!problem.empty()) return problem + " of shape " + format_shape(piece.shape);
  const auto* box = std::get_if<Box>(&piece.region);
  if (std::holds_alternative<FlatRange>(piece.region)) {
    if (piece.local.numel() == numel_of(piece.region, piece.shape) && piece.local.is_contiguous()) return {};
    return "the tensor is not contiguous or does not have the size of its range";
  }
  const auto& sizes = box != nullptr ? box->lengths : piece.shape;
  return piece.local.sizes() == c10::IntArrayRef(sizes) ? ""
                                                        : "the tensor does not have the shape of its region";
}

//! Finds a tensor by the name of the piece, else by its aliases: files of other programs contain a tied
//! tensor under only one of its names.
const StoredTensor* find_stored(const Checkpoint& checkpoint, const Piece& piece) {
  const StoredTensor* stored = checkpoint.find(piece.name, piece.state);
  for (const std::string& alias : piece.aliases)
    if (stored == nullptr) stored = checkpoint.find(alias, piece.state);
  return stored;
}

Findings compare_pieces(const Checkpoint& checkpoint, const std::vector<Piece>& pieces,
                        const LoadOptions& options) {
  Findings found;
  for (const Piece& piece : pieces) {
    const std::string title = tensor_title(piece.name, piece.state);
    if (const std::string problem = local_problem(piece); !problem.empty()) {
      found.wrong.insert(title + ": " + problem);
      continue;
    }
    if (piece.kind == PieceKind::Optimizer) found.asks_states = true;
    const StoredTensor* stored = find_stored(checkpoint, piece);
    if (stored == nullptr) {
      if (piece.kind != PieceKind::Extra) found.missing.insert(title);
      continue;
    }
    found.requested.emplace(stored->name, stored->state);
    for (const std::string& alias : piece.aliases) {
      const StoredTensor* other = checkpoint.find(alias, piece.state);
      if (other != nullptr) found.requested.emplace(other->name, other->state);
    }
    if (stored->shape != piece.shape) {
      found.reshaped.insert(title + ": " + format_shape(stored->shape) + " stored, " +
                            format_shape(piece.shape) + " requested");
    } else if (stored->dtype != piece.local.scalar_type() && !options.convert_dtypes) {
      found.wrong.insert(title + ": " + value::dtype_name(stored->dtype) + " stored, " +
                         value::dtype_name(piece.local.scalar_type()) + " requested");
    }
  }
  return found;
}

std::vector<std::string> extra_of(const Checkpoint& checkpoint, const Findings& found) {
  std::vector<std::string> extra;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const bool counts = tensor.kind == PieceKind::Parameter || tensor.kind == PieceKind::Buffer ||
                        (tensor.kind == PieceKind::Optimizer && found.asks_states);
    if (counts && !found.requested.contains({tensor.name, tensor.state})) {
      extra.push_back(tensor_title(tensor.name, tensor.state));
    }
  }
  return extra;
}

void section(std::string& message, const std::string& heading, const std::vector<std::string>& titles) {
  if (!titles.empty())
    message += str_cat("\n  ", heading, " (", titles.size(), "):\n    ", join(titles, "\n    "));
}

//! Throws CheckpointError for differences that the options do not allow.
LoadReport make_report(const Checkpoint& checkpoint, const Findings& found, const LoadOptions& options) {
  const auto list = [](const std::set<std::string>& titles) {
    return std::vector<std::string>(titles.begin(), titles.end());
  };
  LoadReport report{
      .missing = list(found.missing), .extra = extra_of(checkpoint, found), .reshaped = list(found.reshaped)};
  std::string message, flags;
  const auto refuse = [&](const char* heading, const std::vector<std::string>& titles, bool allowed,
                          const char* flag) {
    if (allowed || titles.empty()) return;
    section(message, heading, titles);
    flags += (flags.empty() ? "" : ", ") + std::string(flag);
  };
  refuse("missing in the checkpoint", report.missing, options.allow_missing, "allow_missing");
  refuse("in the checkpoint but not in the model", report.extra, options.allow_extra, "allow_extra");
  refuse("with a different shape", report.reshaped, options.allow_reshaped, "allow_reshaped");
  section(message, "other mismatches", list(found.wrong));
  if (message.empty()) return report;
  throw CheckpointError(quote(checkpoint.path().string(), 200) + " does not match the model:" + message, {},
                        flags.empty() ? "" : "set " + flags + " to load it anyway");
}

LoadReport load_pieces(const Checkpoint& checkpoint, const Checkpoint::Impl& impl,
                       const std::vector<Piece>& pieces, const LoadOptions& options,
                       const std::function<void(Findings&)>& gather) {
  Findings found = compare_pieces(checkpoint, pieces, options);
  gather(found);
  LoadReport report = make_report(checkpoint, found, options);
  for (const Piece& piece : pieces) {
    const StoredTensor* stored = find_stored(checkpoint, piece);
    if (stored == nullptr || stored->shape != piece.shape) continue;
    const PieceFile file_of = [&](const auto& held) -> const SafetensorsFile& {
      return impl.file_of(*stored, held);
    };
    read_part(*stored, {file_of, impl.has_checksums}, piece.region, piece.local, report);
  }
  return report;
}

}  // namespace

LoadReport Checkpoint::compare(const std::vector<Piece>& pieces, const LoadOptions& options) const {
  return make_report(*this, compare_pieces(*this, local_pieces(pieces), options), options);
}

LoadReport Checkpoint::load(const std::vector<Piece>& pieces, const LoadOptions& options) const {
  return load_pieces(*this, *impl_, local_pieces(pieces), options, [](Findings&) {});
}

LoadReport Checkpoint::load(const std::vector<Piece>& pieces, const comm::Group& group,
                            const LoadOptions& options) const {
  return load_pieces(*this, *impl_, local_pieces(pieces), options, [&](Findings& found) {
    for (const c10::IValue& other : group.all_gather_object(found.packed())) found.add(other.toStringRef());
  });
}

}  // namespace penstock::checkpoint
