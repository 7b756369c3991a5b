// The text of the manifest is {"crc32c":"89abcdef","content":{…}}. The checksum covers the bytes of the
// content.
#include "checkpoint/commit/manifest.h"

#include "base/io/crc32.h"
#include "base/io/json_reader.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/pieces/regions.h"
#include "checkpoint/safetensors/header.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

namespace penstock::checkpoint {
namespace {

constexpr std::string_view kOpening = "{\"crc32c\":\"", kMiddle = "\",\"content\":", kClosing = "}\n";
constexpr const char* kFormatName = "penstock checkpoint";
constexpr int kFormatVersion = 1;
constexpr std::array kPieceKinds = {PieceKind::Parameter, PieceKind::Buffer, PieceKind::Optimizer,
                                    PieceKind::Extra};

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

void write_sizes(JsonWriter& json, const char* name, const std::vector<std::int64_t>& sizes) {
  json.key(name).begin_array();
  for (const std::int64_t size : sizes) json.value(size);
  json.end_array();
}

void write_tensor(JsonWriter& json, const StoredTensor& tensor) {
  json.begin_object().field("name", tensor.name).field("kind", to_string(tensor.kind));
  if (!tensor.state.empty()) json.field("state", tensor.state);
  json.field("dtype", safetensors_dtype_name(tensor.dtype));
  write_sizes(json, "shape", tensor.shape);
  if (!tensor.aliases.empty()) {
    json.key("aliases").begin_array();
    for (const std::string& alias : tensor.aliases) json.value(alias);
    json.end_array();
  }
  json.key("pieces").begin_array();
  for (const auto& piece : tensor.pieces) {
    json.begin_object().field("file", static_cast<std::uint64_t>(piece.file)).field("key", piece.key);
    if (const auto* box = std::get_if<Box>(&piece.region)) {
      write_sizes(json, "offsets", box->offsets);
      write_sizes(json, "lengths", box->lengths);
    } else if (const auto* range = std::get_if<FlatRange>(&piece.region)) {
      write_sizes(json, "flat", {range->begin, range->end});
    }
    json.field("crc32c", crc_text(piece.crc32c)).end_object();
  }
  json.end_array().end_object();
}

std::uint32_t crc_at(const JsonValue& value, const std::string& where) {
  const std::string text = string_at(value, where);
  std::uint32_t crc = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), crc, 16);
  if (text.size() != 8 || error != std::errc{} || end != text.data() + 8)
    fail_at(where, "expected a checksum");
  return crc;
}

std::vector<std::int64_t> sizes_at(const JsonValue& value, const std::string& where) {
  std::vector<std::int64_t> sizes;
  for (const JsonValue& size : array_at(value, where)) sizes.push_back(integer_at(size, where));
  return sizes;
}

StoredFile read_file(const JsonValue& value, const std::string& where) {
  StoredFile file{.name = string_at(field(value, "name", where), where),
                  .crc32c = crc_at(field(value, "crc32c", where), where)};
  const std::int64_t bytes = integer_at(field(value, "bytes", where), where);
  if (bytes < 0) fail_at(where, "a file has a negative size");
  file.bytes = static_cast<std::uint64_t>(bytes);
  // Never open a file outside the directory.
  if (file.name.empty() || file.name[0] == '.' || file.name.find('/') != std::string::npos) {
    fail_at(where, quote(file.name) + " is not a valid file name");
  }
  return file;
}

StoredTensor::StoredPiece read_piece(const JsonValue& value, const StoredTensor& tensor, std::size_t files,
                                     const std::string& where) {
  StoredTensor::StoredPiece piece;
  const std::int64_t file = integer_at(field(value, "file", where), where);
  if (file < 0 || static_cast<std::size_t>(file) >= files) fail_at(where, str_cat("there is no file ", file));
  piece.file = static_cast<std::size_t>(file);
  piece.key = string_at(field(value, "key", where), where);
  piece.crc32c = crc_at(field(value, "crc32c", where), where);
  if (const JsonValue* flat = optional_field(value, "flat", where)) {
    const auto ends = sizes_at(*flat, where);
    if (ends.size() != 2) fail_at(where, "expected a begin and an end");
    piece.region = FlatRange{ends[0], ends[1]};
  } else {
    piece.region =
        Box{sizes_at(field(value, "offsets", where), where), sizes_at(field(value, "lengths", where), where)};
  }
  const std::string problem = region_problem(piece.region, tensor.shape);
  if (!problem.empty()) fail_at(where, problem);
  return piece;
}

StoredTensor read_tensor(const JsonValue& value, std::size_t files, const std::string& where) {
  StoredTensor tensor{.name = string_at(field(value, "name", where), where)};
  const std::string here = where + ": " + quote(tensor.name, 200);
  if (const JsonValue* state = optional_field(value, "state", here)) tensor.state = string_at(*state, here);
  const std::string kind = string_at(field(value, "kind", here), here);
  const auto known =
      std::find_if(kPieceKinds.begin(), kPieceKinds.end(), [&](PieceKind k) { return to_string(k) == kind; });
  if (known == kPieceKinds.end()) fail_at(here, "unknown kind " + quote(kind));
  tensor.kind = *known;
  const std::string dtype = string_at(field(value, "dtype", here), here);
  const auto type = safetensors_dtype(dtype);
  if (!type) fail_at(here, "unknown dtype " + quote(dtype));
  tensor.dtype = *type;
  tensor.shape = sizes_at(field(value, "shape", here), here);
  if (!checked_nbytes(tensor.shape, tensor.dtype)) fail_at(here, "the shape is not valid");
  if (const JsonValue* aliases = optional_field(value, "aliases", here)) {
    for (const JsonValue& alias : array_at(*aliases, here)) tensor.aliases.push_back(string_at(alias, here));
  }
  std::vector<Region> parts;
  for (const JsonValue& piece : array_at(field(value, "pieces", here), here)) {
    tensor.pieces.push_back(read_piece(piece, tensor, files, here));
    parts.push_back(tensor.pieces.back().region);
  }
  const std::optional<std::int64_t> count = uncovered(tensor.shape, parts);
  if (!count) fail_at(here, str_cat(parts.size(), " pieces overlap in too many ways to be checked"));
  if (*count > 0) fail_at(here, str_cat(*count, " of its elements are in no file"));
  return tensor;
}

}  // namespace

std::string crc_text(std::uint32_t crc) {
  return formatted("%08x", crc);
}

std::string manifest_text(const Manifest& manifest) {
  JsonWriter json;
  json.begin_object()
      .field("format", kFormatName)
      .field("version", kFormatVersion)
      .field("step", manifest.step);
  json.key("notes").begin_object();
  for (const auto& [name, text] : manifest.notes) json.field(name, text);
  json.end_object().key("files").begin_array();
  for (const StoredFile& file : manifest.files) {
    json.begin_object().field("name", file.name).field("bytes", file.bytes);
    json.field("crc32c", crc_text(file.crc32c)).end_object();
  }
  json.end_array().key("tensors").begin_array();
  for (const StoredTensor& tensor : manifest.tensors) write_tensor(json, tensor);
  json.end_array().end_object();
  std::string text(kOpening);
  return text.append(crc_text(crc32c(bytes_of(json.text()))))
      .append(kMiddle)
      .append(json.text())
      .append(kClosing);
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const std::size_t begin = kOpening.size() + 8 + kMiddle.size();
  if (text.size() < begin + kClosing.size() || !text.starts_with(kOpening) || !text.ends_with(kClosing) ||
      text.substr(kOpening.size() + 8, kMiddle.size()) != kMiddle) {
    fail_at(where, "this is not a checkpoint manifest, or it is truncated");
  }
  const std::string_view content = text.substr(begin, text.size() - begin - kClosing.size());
  if (text.substr(kOpening.size(), 8) != crc_text(crc32c(bytes_of(content)))) {
    fail_at(where, "the manifest is damaged: its checksum does not match");
  }
  const JsonValue json = parse_json(bytes_of(content), where);
  if (string_at(field(json, "format", where), where) != kFormatName) fail_at(where, "unknown format");
  if (const auto version = integer_at(field(json, "version", where), where); version != kFormatVersion) {
    fail_at(where, str_cat("version ", version, " of the format is not supported"));
  }
  Manifest manifest{.step = integer_at(field(json, "step", where), where)};
  if (manifest.step < 0) fail_at(where, "the step is negative");
  for (const auto& [name, note] : object_at(field(json, "notes", where), where)) {
    manifest.notes.emplace(name, string_at(note, where));
  }
  for (const JsonValue& file : array_at(field(json, "files", where), where)) {
    manifest.files.push_back(read_file(file, where));
  }
  std::set<std::pair<std::string, std::string>> names;
  for (const JsonValue& value : array_at(field(json, "tensors", where), where)) {
    StoredTensor tensor = read_tensor(value, manifest.files.size(), where);
    bool fresh = names.emplace(tensor.name, tensor.state).second;
    for (const std::string& alias : tensor.aliases)
      fresh = names.emplace(alias, tensor.state).second && fresh;
    if (!fresh) fail_at(where, "duplicate tensor " + quote(tensor_title(tensor.name, tensor.state), 200));
    manifest.tensors.push_back(std::move(tensor));
  }
  return manifest;
}

}  // namespace penstock::checkpoint
