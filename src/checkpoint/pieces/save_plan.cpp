// Plans which rank writes which piece.
#include "checkpoint/pieces/save_plan.h"

#include "base/io/bytes.h"
#include "base/text.h"
#include "checkpoint/pieces/regions.h"
#include "checkpoint/safetensors/header.h"

#include <penstock/value/tensor_meta.h>

#include <algorithm>
#include <map>

namespace penstock::checkpoint {
namespace {

struct Described {
  std::string name, state;
  PieceKind kind = PieceKind::Parameter;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::vector<std::string> aliases;
  Region region;
  std::string problem;
};

std::string problem_of(const Piece& piece) {
  if (piece.name.empty()) return "a piece has no name";
  if ((piece.kind == PieceKind::Optimizer) == piece.state.empty()) {
    return "optimizer pieces, and only those, must have a state";
  }
  if (!piece.local.defined()) return "the piece has no tensor";
  if (piece.local.layout() != at::kStrided || safetensors_dtype_name(piece.local.scalar_type()).empty()) {
    return "the layout or dtype of the tensor is not supported";
  }
  if (!checked_nbytes(piece.shape, piece.local.scalar_type())) return "the shape is not valid";
  std::string problem = region_problem(piece.region, piece.shape);
  if (!problem.empty()) return problem;
  const auto* box = std::get_if<Box>(&piece.region);
  const bool fits =
      std::holds_alternative<FlatRange>(piece.region)
          ? piece.local.numel() == numel_of(piece.region, piece.shape)
          : piece.local.sizes() == c10::IntArrayRef(box != nullptr ? box->lengths : piece.shape);
  return fits ? "" : "the tensor does not have the size of its region";
}

void write_sizes(ByteWriter& writer, const std::vector<std::int64_t>& sizes) {
  writer.unsigned_int(sizes.size());
  for (const std::int64_t size : sizes) writer.signed_int(size);
}

std::vector<std::int64_t> read_sizes(ByteReader& reader) {
  std::vector<std::int64_t> sizes(reader.count());
  for (std::int64_t& size : sizes) size = reader.signed_int();
  return sizes;
}

Described read_description(ByteReader& reader) {
  Described piece;
  piece.name = reader.text();
  piece.state = reader.text();
  piece.kind = static_cast<PieceKind>(reader.u8());
  piece.problem = reader.text();
  for (std::size_t n = reader.count(); n > 0; --n) piece.aliases.push_back(reader.text());
  piece.dtype = static_cast<at::ScalarType>(reader.u8());
  piece.shape = read_sizes(reader);
  if (reader.u8() == 0) {
    Box box;
    box.offsets = read_sizes(reader);
    box.lengths = read_sizes(reader);
    piece.region = std::move(box);
  } else {
    FlatRange range;
    range.begin = reader.signed_int();
    range.end = reader.signed_int();
    piece.region = range;
  }
  return piece;
}

//! One tensor with the pieces of all ranks.
struct Gathered {
  Described what;
  int rank = 0;  //!< the first rank that described it
  struct Holder {
    int rank = 0;
    std::size_t piece = 0;
  };
  std::map<Region, std::vector<Holder>> parts;
};

using Tensors = std::map<std::pair<std::string, std::string>, Gathered>;

void gather(const std::string& description, int rank, Tensors& tensors, std::vector<std::string>& problems) {
  ByteReader reader({reinterpret_cast<const std::uint8_t*>(description.data()), description.size()});
  const std::size_t count = reader.count();
  for (std::size_t i = 0; i < count; ++i) {
    const Described piece = read_description(reader);
    const std::string title = tensor_title(piece.name, piece.state);
    if (!piece.problem.empty()) {
      problems.push_back(str_cat(title, " (rank ", rank, "): ", piece.problem));
      continue;
    }
    const auto [it, fresh] = tensors.try_emplace({piece.name, piece.state}, Gathered{piece, rank, {}});
    Gathered& tensor = it->second;
    if (tensor.what.shape != piece.shape || tensor.what.dtype != piece.dtype ||
        tensor.what.kind != piece.kind) {
      problems.push_back(
          str_cat(title, ": ranks ", tensor.rank, " and ", rank, " differ in its shape, dtype or kind"));
      continue;
    }
    for (const std::string& alias : piece.aliases) {
      auto& known = tensor.what.aliases;
      if (alias != piece.name && std::find(known.begin(), known.end(), alias) == known.end())
        known.push_back(alias);
    }
    if (numel_of(piece.region, piece.shape) > 0) tensor.parts[piece.region].push_back({rank, i});
  }
}

std::string key_of(const Described& tensor, const Region& part) {
  const std::string key =
      tensor.state.empty() ? tensor.name : "optimizer/" + tensor.state + "/" + tensor.name;
  const bool full = numel_of(part, tensor.shape) == numel_of(tensor.shape);
  return full ? key : key + to_string(part);
}

}  // namespace

std::string describe_pieces(const std::vector<Piece>& pieces) {
  ByteWriter writer;
  writer.unsigned_int(pieces.size());
  for (const Piece& piece : pieces) {
    const std::string problem = problem_of(piece);
    writer.text(piece.name);
    writer.text(piece.state);
    writer.u8(static_cast<std::uint8_t>(piece.kind));
    writer.text(problem);
    writer.unsigned_int(piece.aliases.size());
    for (const std::string& alias : piece.aliases) writer.text(alias);
    writer.u8(static_cast<std::uint8_t>(piece.local.defined() ? piece.local.scalar_type() : at::kFloat));
    write_sizes(writer, piece.shape);
    const Region part = problem.empty() ? canonical(piece.region, piece.shape) : Region(FlatRange{});
    if (const auto* box = std::get_if<Box>(&part)) {
      writer.u8(0);
      write_sizes(writer, box->offsets);
      write_sizes(writer, box->lengths);
    } else {
      writer.u8(1);
      const auto& range = std::get<FlatRange>(part);
      writer.signed_int(range.begin);
      writer.signed_int(range.end);
    }
  }
  const auto bytes = writer.take();
  return {bytes.begin(), bytes.end()};
}

SavePlan plan_save(const std::vector<std::string>& descriptions) {
  Tensors tensors;
  std::vector<std::string> problems;
  for (std::size_t rank = 0; rank < descriptions.size(); ++rank) {
    gather(descriptions[rank], static_cast<int>(rank), tensors, problems);
  }
  SavePlan plan;
  plan.jobs.resize(descriptions.size());
  std::vector<std::uint64_t> load(descriptions.size(), 0);
  for (auto& [key, gathered] : tensors) {
    const Described& what = gathered.what;
    // If an alias names a separate tensor on some rank, it is not an alias: both are stored.
    std::erase_if(gathered.what.aliases, [&](const std::string& alias) {
      return tensors.contains({alias, what.state});
    });
    StoredTensor tensor{what.name, what.state, what.kind, what.dtype, what.shape, what.aliases, {}};
    std::vector<Region> parts;
    for (const auto& [part, holders] : gathered.parts) {
      const auto least = std::min_element(holders.begin(), holders.end(), [&](const auto& a, const auto& b) {
        return load[static_cast<std::size_t>(a.rank)] < load[static_cast<std::size_t>(b.rank)];
      });
      const auto rank = static_cast<std::size_t>(least->rank);
      load[rank] += static_cast<std::uint64_t>(numel_of(part, what.shape)) * c10::elementSize(what.dtype);
      plan.jobs[rank].push_back({least->piece, plan.tensors.size(), tensor.pieces.size()});
      tensor.pieces.push_back({rank, key_of(what, part), part, 0});  // replaced by the file index below
      parts.push_back(part);
    }
    const std::optional<std::int64_t> count = uncovered(what.shape, parts);
    if (!count) {
      problems.push_back(str_cat(tensor_title(what.name, what.state), ": ", parts.size(),
                                 " pieces overlap in too many ways to be checked"));
    } else if (*count > 0) {
      problems.push_back(str_cat(tensor_title(what.name, what.state), ": no rank has ", *count, " of its ",
                                 numel_of(what.shape), " elements"));
    }
    plan.tensors.push_back(std::move(tensor));
  }
  if (!problems.empty()) throw UsageError("the pieces cannot be saved:\n  " + join(problems, "\n  "));

  std::vector<std::size_t> file_of(descriptions.size(), 0);
  for (std::size_t rank = 0; rank < plan.jobs.size(); ++rank) {
    if (plan.jobs[rank].empty()) continue;
    file_of[rank] = plan.writers.size();
    plan.writers.push_back(static_cast<int>(rank));
  }
  for (std::size_t i = 0; i < plan.writers.size(); ++i) {
    plan.files.push_back({.name = formatted("shard-%05zu-of-%05zu.safetensors", i, plan.writers.size())});
  }
  for (StoredTensor& tensor : plan.tensors) {
    for (auto& piece : tensor.pieces) piece.file = file_of[piece.file];
  }
  return plan;
}

}  // namespace penstock::checkpoint
