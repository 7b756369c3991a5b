// Fuzz targets for the libtorch half: files, archives, graphs, and messages between ranks.
#include "base/io/crc32.h"
#include "base/io/json_reader.h"
#include "base/io/zip.h"
#include "base/json.h"
#include "checkpoint/commit/manifest.h"
#include "checkpoint/safetensors/header.h"
#include "comm/failure/failure.h"
#include "comm/failure/flight_recorder.h"
#include "comm/failure/flight_summary.h"
#include "comm/failure/sockets.h"
#include "fuzz/targets.h"
#include "graph/pt2/import.h"
#include "train/text/tokenizer_file.h"
#include "train/text/tokenizer_steps.h"
#include "value/serialize.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_text.h>
#include <penstock/graph/pt2.h>
#include <penstock/train/tokenizer.h>

#include <ATen/ATen.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace penstock::fuzz {
namespace {

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

//! A file in memory, for readers that take a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : file_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (::write(file_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
  }
  ~MemoryFile() { ::close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

void write(JsonWriter& json, const JsonValue& value) {
  if (const JsonObject* const object = value.object()) {
    json.begin_object();
    for (const auto& [name, member] : *object) write(json.key(name), member);
    json.end_object();
  } else if (const JsonArray* const array = value.array()) {
    json.begin_array();
    for (const JsonValue& item : *array) write(json, item);
    json.end_array();
  } else if (value.string() != nullptr) {
    json.value(*value.string());
  } else if (value.boolean()) {
    json.value(*value.boolean());
  } else if (value.integer()) {
    json.value(*value.integer());
  } else if (value.unsigned_integer()) {
    json.value(*value.unsigned_integer());
  } else if (value.number()) {
    json.value(*value.number());
  } else {
    json.null();
  }
}

std::string json_text(const JsonValue& value) {
  JsonWriter json;
  write(json, value);
  return json.text();
}

const char* check_json(std::string_view bytes) {
  const JsonValue json = parse_json(bytes, "fuzz");
  const std::string printed = json_text(json);
  if (json_text(parse_json(printed, "fuzz")) != printed) return "JSON that is printed reads as another value";
  if (const JsonObject* const object = json.object()) {
    for (const auto& [name, member] : *object)
      if (object->find(name) != &member) return "a member is not found by its name";
  }
  const JsonChoice choice = choice_at(json, "fuzz");
  integer_at(field(*choice.value, "as_int", "fuzz"), "fuzz");
  real_at(field(*choice.value, "as_float", "fuzz"), "fuzz");
  return nullptr;
}

// Any dump gives an explanation, never an error.
const char* check_flight(std::string_view bytes) {
  try {
    comm::explain_flight({std::string(bytes)}, {});
  } catch (const Error&) {
    return "a dump that is refused with an error";
  }
  return nullptr;
}

const char* check_safetensors(std::string_view bytes) {
  const std::uint64_t length =
      checkpoint::safetensors_header_length(bytes_of(bytes.substr(0, 8)), bytes.size(), "fuzz");
  const std::uint64_t size = bytes.size() - 8 - length;
  std::uint64_t next = 0;
  for (const auto& entry :
       checkpoint::parse_safetensors_header(bytes.substr(8, length), size, "fuzz").entries) {
    if (entry.begin != next || checkpoint::checked_nbytes(entry.shape, entry.dtype) != entry.nbytes())
      return "tensors that leave holes, overlap or do not fill their place";
    next = entry.end;
  }
  if (next != size) return "tensors that do not fill the file";
  const MemoryFile file(bytes);
  checkpoint::load_safetensors(file.path());
  return nullptr;
}

// The input is the content; a matching checksum is added, because otherwise nothing would be parsed.
const char* check_manifest(std::string_view bytes) {
  const std::string text = "{\"crc32c\":\"" + checkpoint::crc_text(crc32c(bytes_of(bytes))) +
                           "\",\"content\":" + std::string(bytes) + "}\n";
  const std::string printed = manifest_text(checkpoint::parse_manifest(text, "fuzz"));
  if (manifest_text(checkpoint::parse_manifest(printed, "fuzz")) != printed)
    return "a manifest that is printed reads as another";
  return nullptr;
}

const char* check_round_trip(const graph::Graph& graph) {
  const std::string text = to_string(graph);
  try {
    return to_string(graph::parse_graph(text)) == text ? nullptr : "a graph that is printed reads as another";
  } catch (const Error&) {
    return "a graph that is printed cannot be read";
  }
}

const char* check_graph_text(std::string_view bytes) {
  return check_round_trip(graph::parse_graph(bytes));
}

// The index of weights and constants, a zero byte, and the program.
const char* check_program(std::string_view bytes) {
  const std::size_t zero = std::min(bytes.find('\0'), bytes.size());
  graph::WeightLocations locations;
  read_weight_locations(parse_json(bytes.substr(0, zero), "weights"), "data/weights/", "weights", locations);
  for (const auto& [name, location] : locations) location.span();
  return check_round_trip(
      import_program(parse_json(bytes.substr(std::min(zero + 1, bytes.size())), "program"), locations));
}

const char* check_archive(std::string_view bytes) {
  const MemoryFile file(bytes);
  const ZipFile zip(file.path());
  for (const std::string& name : zip.names()) {
    try {
      zip.read(name);
    } catch (const ParseError&) {
    }
  }
  const graph::Pt2Archive archive(file.path());
  archive.load(archive.graph().slots);
  return nullptr;
}

const char* check_message(std::string_view bytes) {
  if (bytes.empty()) return nullptr;
  const auto message = bytes_of(bytes.substr(1));
  if (bytes[0] % 2 == 0) {
    const auto printed = value::serialize(value::deserialize(message));
    if (value::serialize(value::deserialize(printed)) != printed)
      return "a message that is written reads as another";
  } else {
    const value::TreeMeta meta = value::deserialize_meta(message);
    if (value::deserialize_meta(serialize_meta(meta)) != meta)
      return "metadata that is written reads as another";
  }
  return nullptr;
}

// Values that a rank reads from the store: endpoints of monitors, and failures.
const char* check_monitor(std::string_view bytes) {
  const std::string text(bytes);
  const comm::Failure failure = comm::Failure::parse(text);
  const comm::Failure again = comm::Failure::parse(failure.serialize());
  if (failure.rank != again.rank || failure.cause != again.cause || failure.departure != again.departure)
    return "a failure that is written reads as another";
  const comm::Endpoint endpoint = comm::Endpoint::parse(text);
  const comm::Endpoint same = comm::Endpoint::parse(endpoint.text());
  if (same.host != endpoint.host || same.port != endpoint.port)
    return "an endpoint that is written reads as another";
  return nullptr;
}

std::string tests(const std::string& path) {
  return std::string(PENSTOCK_SOURCE_DIR) + "/tests/" + path;
}

constexpr std::array kSmallArchives = {"graph/archives/mlp.pt2", "graph/archives/mixed.pt2",
                                       "graph/archives/gru.pt2", "graph/archives/overlap.pt2",
                                       "graph/archives/marked.pt2"};

std::vector<std::string> archive_seeds() {
  std::vector<std::string> seeds;
  for (const char* name : kSmallArchives) seeds.push_back(file_content(tests(name)));
  return seeds;
}

//! `{"config": {…}}` with the tensors of both indices.
std::string index_text(const ZipFile& zip) {
  JsonWriter json;
  json.begin_object().key("config").begin_object();
  for (const char* name :
       {"data/weights/model_weights_config.json", "data/constants/model_constants_config.json"}) {
    const JsonValue index = parse_json(zip.read(name), name);
    for (const auto& [tensor, entry] : object_at(field(index, "config", name), name))
      write(json.key(tensor), entry);
  }
  return json.end_object().end_object().text();
}

std::vector<std::string> program_seeds() {
  std::vector<std::string> seeds;
  for (const char* name : kSmallArchives) {
    const ZipFile zip(tests(name));
    const auto program = zip.read("models/model.json");
    seeds.push_back(index_text(zip) + '\0');
    seeds.back().append(program.begin(), program.end());
  }
  return seeds;
}

std::vector<std::string> graph_seeds() {
  std::vector<std::string> seeds;
  for (const char* name : kSmallArchives) seeds.push_back(to_string(graph::Pt2Archive(tests(name)).graph()));
  return seeds;
}

std::vector<std::string> safetensors_seeds() {
  return {file_content(tests("checkpoint/files/all_dtypes.safetensors")),
          file_content(tests("checkpoint/files/shapes.safetensors")),
          file_content(tests("checkpoint/files/none.safetensors"))};
}

std::vector<std::string> manifest_seeds() {
  checkpoint::Manifest manifest{.step = 12, .notes = {{"config", "lr = 1\n"}}};
  manifest.files = {{"shard-0.safetensors", 96, 1}, {"shard-1.safetensors", 64, 2}};
  manifest.tensors.push_back({.name = "a", .shape = {4, 6}, .aliases = {"b"}});
  manifest.tensors.back().pieces = {{0, "a[0:2]", checkpoint::Box{{0, 0}, {2, 6}}, 3},
                                    {1, "a[flat 12:24]", checkpoint::FlatRange{12, 24}, 4}};
  manifest.tensors.push_back(
      {.name = "a", .state = "step", .kind = checkpoint::PieceKind::Optimizer, .dtype = at::kDouble});
  manifest.tensors.back().pieces = {{1, "step", checkpoint::Box{}, 5}};
  const std::string text = manifest_text(manifest);
  const std::size_t begin = text.find("\"content\":") + 10;
  return {text.substr(begin, text.size() - begin - 2)};
}

std::vector<std::string> message_seeds() {
  const at::Tensor tensor = at::arange(6, at::kFloat).view({2, 3}).requires_grad_();
  const auto tuple =
      c10::ivalue::Tuple::create({tensor, at::ones({0, 2}, at::kBool), 3, 2.5, true, "text", c10::IValue(),
                                  c10::complex<double>(1, 2), std::vector<std::int64_t>{1, 2}});
  std::vector<std::string> seeds;
  const auto values = value::serialize(tuple), meta = serialize_meta(value::TreeMeta::of(tuple));
  seeds.emplace_back(1, '\0');
  seeds.back().append(values.begin(), values.end());
  seeds.emplace_back(1, '\1');
  seeds.back().append(meta.begin(), meta.end());
  return seeds;
}

std::vector<std::string> flight_seeds() {
  comm::FlightRecorder recorder(Rank(2));
  recorder.start({.op = "recv", .group = "world", .peer = 1, .tag = 9, .bytes = 2048});
  recorder.finish(recorder.start({.op = "all_reduce", .group = "world", .sequence = 1, .bytes = 64}), false);
  recorder.finish(recorder.start({.op = "all_reduce", .group = "world", .sequence = 2, .bytes = 64}), true);
  return {to_json(recorder)};
}

std::vector<std::string> monitor_seeds() {
  return {"127.0.0.1|4711",   "fe80::1|65535", "-:gone", "3:it threw: x", "3 left:early", "12", "|",
          "host|99999999999", "host|-1"};
}

// A byte-level tokenizer with the 256 bytes, a few merges and an added token. The corpus has other ones.
std::vector<std::string> tokenizer_seeds() {
  JsonWriter json;
  json.begin_object().key("added_tokens").begin_array();
  json.begin_object().field("id", 259).field("content", "<|end|>").field("special", true).end_object();
  json.end_array().key("pre_tokenizer").begin_object();
  json.field("type", "ByteLevel").field("add_prefix_space", false).end_object();
  json.key("model").begin_object().field("type", "BPE").key("vocab").begin_object();
  for (int byte = 0; byte < 256; ++byte)
    json.field(train::byte_character(static_cast<std::uint8_t>(byte)), byte);
  json.field("it", 256).field("or", 257).field("wor", 258).end_object().key("merges").begin_array();
  json.value("i t").begin_array().value("o").value("r").end_array().value("w or");
  return {json.end_array().end_object().end_object().text()};
}

// Whether decoding returns the text: a byte-level tokenizer that neither adds nor removes anything.
bool keeps_text(std::string_view bytes) {
  const train::TokenizerFile file = train::parse_tokenizer_file(bytes, "tokenizer");
  if (!file.model.byte_level || !file.normalizer.empty()) return false;
  if (file.decoder->size() != 1 || !std::holds_alternative<train::DecodeBytes>(file.decoder->front()))
    return false;
  const auto changes = [](const train::SplitStep& step) {
    const auto* const last = std::get_if<train::ByteSplit>(&step);
    return std::holds_alternative<train::MarkSpaces>(step) || (last != nullptr && last->prefix);
  };
  if (std::any_of(file.splits.begin(), file.splits.end(), changes)) return false;
  const JsonValue json = parse_json(bytes, "tokenizer");
  const JsonValue* const added = optional_field(json, "added_tokens", "tokenizer");
  return added == nullptr ||
         std::none_of(added->array()->begin(), added->array()->end(), [](const auto& token) {
           const std::string content = train::text_of(token, "content", "token");
           return train::flag_of(token, "lstrip", "token") || train::flag_of(token, "rstrip", "token") ||
                  train::bytes_of_token(content).value_or(content) != content;
         });
}

const char* check_tokenizer(std::string_view bytes) {
  const train::Tokenizer tokenizer = train::Tokenizer::parse(bytes, "tokenizer");
  const bool is_kept = keeps_text(bytes);
  for (const std::string& text :
       {std::string(), std::string("with 12345 words,<|end|>\r\n  it's \xc3\xa9 \n"), std::string(200, ' '),
        std::string(bytes.substr(0, 300))}) {
    const std::vector<std::uint32_t> tokens = tokenizer.encode(text);
    for (const std::uint32_t token : tokens)
      if (token >= tokenizer.size()) return "a token is outside the vocabulary";
    const std::vector<std::int64_t> wide(tokens.begin(), tokens.end());
    if (const std::string decoded = tokenizer.decode(wide); is_kept && decoded != text)
      return "decoding does not return the text";
  }
  return nullptr;
}

constexpr const char* kJsonWords =
    "{ } [ ] : , \" \\u0000 null true -1 1e308 18446744073709551615 9223372036854775807 as_int as_expr "
    "as_name as_tensor "
    "as_none as_ints as_graph shape lengths offsets flat name kind dtype F32 pieces [[[[[[[[ {\"a\":";
constexpr std::array kTargets = {
    Target{"json", check_json, manifest_seeds, kJsonWords},
    Target{"safetensors", check_safetensors, safetensors_seeds, kJsonWords},
    Target{"manifest", check_manifest, manifest_seeds, kJsonWords},
    Target{"program", check_program, program_seeds, kJsonWords},
    Target{"archive", check_archive, archive_seeds,
           "PK\x03\x04 PK\x01\x02 PK\x05\x06 PK\x06\x06 PK\x06\x07 \xff\xff\xff\xff / data/weights/"},
    Target{"graph", check_graph_text, graph_seeds,
           "( ) [ ] { } , : = % @ \" None True device complex float32 aten::add.Tensor scalar::add return "
           "inputs symbol "
           "write <- no_grad autocast pipe_split _ -1 9223372036854775807 1e308 \\u0000"},
    Target{"message", check_message, message_seeds,
           "\xa1 \x01 \x02 \x03 \x04 \xff\xff\xff\xff\x0f \x80 \x7f"},
    Target{"flight", check_flight, flight_seeds, kJsonWords},
    Target{"monitor", check_monitor, monitor_seeds, "| : - 0 65536 99999999999 :: \xff"},
    Target{"tokenizer", check_tokenizer, tokenizer_seeds,
           "{ } [ ] : , \" null true false -1 0 \xe2\x96\x81 <unk> <0x41> byte_fallback unk_token fuse_unk "
           "ignore_merges normalized lstrip rstrip Sequence Prepend Replace NFC Metaspace first never Digits "
           "Split MergedWithNext ByteLevel ByteFallback Fuse Strip"},
};

}  // namespace

std::span<const Target> targets() {
  return kTargets;
}

}  // namespace penstock::fuzz
