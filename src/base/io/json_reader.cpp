// Reads JSON through the SAX interface of nlohmann::json. Does not use its value type, whose destructor
// allocates memory and terminates the process if the allocation fails.
#include "base/io/json_reader.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace penstock {
namespace {

using Library = nlohmann::json;

constexpr std::size_t kMaxLinearMembers = 8;  // objects with at most this many members use linear search

//! Turns `[json.exception.parse_error.101] parse error at line 1, column 2: …` into `not valid JSON at line
//! 1, …`.
std::string problem_text(std::size_t position, std::string_view library_text) {
  constexpr std::string_view position_follows = "parse error at ";
  if (const std::size_t id_end = library_text.find("] ");
      library_text.starts_with('[') && id_end != std::string_view::npos)
    library_text.remove_prefix(id_end + 2);
  std::string text = "not valid JSON at ";
  if (library_text.starts_with(position_follows)) {
    library_text.remove_prefix(position_follows.size());
  } else {
    text += str_cat("byte ", position, ": ");
  }
  // The library quotes the offending token, which may have any length.
  return text.append(library_text.substr(0, 300));
}

//! Forwards the events of the library to a JsonHandler.
class Events final : public nlohmann::json_sax<Library> {
 public:
  explicit Events(JsonHandler& handler) : handler_(handler) {}

  bool null() override {
    handler_.null();
    return true;
  }
  bool boolean(bool truth) override {
    handler_.boolean(truth);
    return true;
  }
  bool number_integer(std::int64_t number) override {
    handler_.negative_integer(number);
    return true;
  }
  bool number_unsigned(std::uint64_t number) override {
    handler_.unsigned_integer(number);
    return true;
  }
  bool number_float(double number, const std::string& /*text*/) override {
    handler_.real(number);
    return true;
  }
  bool string(std::string& text) override {
    handler_.string(text);
    return true;
  }
  bool binary(Library::binary_t& /*bytes*/) override {
    handler_.refuse("JSON cannot contain binary data");
    return false;
  }
  bool start_object(std::size_t /*elements*/) override {
    enter();
    handler_.begin_object();
    return true;
  }
  bool key(std::string& name) override {
    handler_.key(name);
    return true;
  }
  bool end_object() override {
    --depth_;
    handler_.end_object();
    return true;
  }
  bool start_array(std::size_t /*elements*/) override {
    enter();
    handler_.begin_array();
    return true;
  }
  bool end_array() override {
    --depth_;
    handler_.end_array();
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    handler_.refuse(problem_text(position, error.what()));
    return false;
  }

 private:
  void enter() {
    if (++depth_ > kMaxJsonDepth)
      handler_.refuse(str_cat("lists and objects are nested deeper than ", kMaxJsonDepth));
  }

  JsonHandler& handler_;
  int depth_ = 0;
};

//! Builds a value. Keeps the open lists and objects on a stack.
class Builder final : public JsonHandler {
 public:
  explicit Builder(const std::string& where) : where_(where) {}

  JsonValue take() { return std::move(root_); }

  void null() override { add({}); }
  void boolean(bool truth) override { add(truth); }
  void unsigned_integer(std::uint64_t number) override {
    if (std::in_range<std::int64_t>(number)) {
      add(static_cast<std::int64_t>(number));
    } else {
      add(number);
    }
  }
  void negative_integer(std::int64_t number) override { add(number); }
  void real(double number) override { add(number); }
  void string(std::string& text) override { add(std::move(text)); }
  void begin_array() override { open_.emplace_back(JsonArray()); }
  void begin_object() override { open_.emplace_back(Members()); }
  void key(std::string& name) override {
    std::get<Members>(open_.back()).push_back({std::move(name), JsonValue()});
  }
  void end_array() override {
    JsonArray items = std::get<JsonArray>(std::move(open_.back()));
    open_.pop_back();
    add(std::move(items));
  }
  void end_object() override {
    Members members = std::get<Members>(std::move(open_.back()));
    open_.pop_back();
    add(JsonObject(std::move(members)));
  }
  [[noreturn]] void refuse(const std::string& problem) override {
    throw ParseError(where_ + ": " + problem, {}, "the text is damaged, truncated, or not JSON");
  }

 private:
  using Members = std::vector<JsonMember>;

  void add(JsonValue::Content content) {
    JsonValue value(std::move(content));
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (auto* const items = std::get_if<JsonArray>(&open_.back())) {
      items->push_back(std::move(value));
    } else {
      std::get<Members>(open_.back()).back().value = std::move(value);
    }
  }

  const std::string& where_;
  std::vector<std::variant<JsonArray, Members>> open_;
  JsonValue root_;
};

}  // namespace

void read_json(std::string_view text, JsonHandler& handler) {
  Events events(handler);
  Library::sax_parse(text.begin(), text.end(), &events);
}

// Defined here because JsonMember is incomplete in the class.
JsonObject::JsonObject() = default;
JsonObject::JsonObject(const JsonObject& other) = default;
JsonObject::JsonObject(JsonObject&& other) noexcept = default;
JsonObject& JsonObject::operator=(const JsonObject& other) = default;
JsonObject& JsonObject::operator=(JsonObject&& other) noexcept = default;
JsonObject::~JsonObject() = default;

const JsonMember* JsonObject::begin() const {
  return members_.data();
}

const JsonMember* JsonObject::end() const {
  return members_.data() + members_.size();
}

std::size_t JsonObject::size() const {
  return members_.size();
}

JsonObject::JsonObject(std::vector<JsonMember> members) : members_(std::move(members)) {
  if (members_.size() < 2) return;
  const auto sort_by_name = [this] {
    by_name_.resize(members_.size());
    std::iota(by_name_.begin(), by_name_.end(), 0U);
    std::sort(by_name_.begin(), by_name_.end(), [this](std::uint32_t a, std::uint32_t b) {
      const int order = members_[a].name.compare(members_[b].name);
      return order != 0 ? order < 0 : a < b;
    });
  };
  sort_by_name();
  std::vector<bool> replaced;
  for (std::size_t i = 1; i < by_name_.size(); ++i) {
    if (members_[by_name_[i - 1]].name != members_[by_name_[i]].name) continue;
    replaced.resize(members_.size());
    replaced[by_name_[i - 1]] = true;
  }
  if (!replaced.empty()) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (replaced[i]) continue;
      if (kept != i) members_[kept] = std::move(members_[i]);
      ++kept;
    }
    members_.resize(kept);
    sort_by_name();
  }
  if (members_.size() <= kMaxLinearMembers) by_name_ = {};
}

const JsonValue* JsonObject::find(std::string_view name) const {
  if (by_name_.empty()) {
    const auto it =
        std::find_if(begin(), end(), [&](const JsonMember& member) { return member.name == name; });
    return it == end() ? nullptr : &it->value;
  }
  const auto it = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](std::uint32_t i, std::string_view wanted) { return members_[i].name < wanted; });
  return it == by_name_.end() || members_[*it].name != name ? nullptr : &members_[*it].value;
}

std::optional<bool> JsonValue::boolean() const {
  const auto* const truth = std::get_if<bool>(&content_);
  return truth ? std::optional(*truth) : std::nullopt;
}

std::optional<std::int64_t> JsonValue::integer() const {
  const auto* const number = std::get_if<std::int64_t>(&content_);
  return number ? std::optional(*number) : std::nullopt;
}

std::optional<std::uint64_t> JsonValue::unsigned_integer() const {
  if (const auto* const large = std::get_if<std::uint64_t>(&content_)) return *large;
  const auto* const number = std::get_if<std::int64_t>(&content_);
  return number && *number >= 0 ? std::optional(static_cast<std::uint64_t>(*number)) : std::nullopt;
}

std::optional<double> JsonValue::number() const {
  if (const auto* const real = std::get_if<double>(&content_)) return *real;
  if (const auto* const large = std::get_if<std::uint64_t>(&content_)) return static_cast<double>(*large);
  if (const auto* const integer = std::get_if<std::int64_t>(&content_)) return static_cast<double>(*integer);
  return std::nullopt;
}

JsonValue parse_json(std::string_view text, const std::string& where) {
  Builder builder(where);
  read_json(text, builder);
  return builder.take();
}

JsonValue parse_json(std::span<const std::uint8_t> bytes, const std::string& where) {
  return parse_json(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()), where);
}

void fail_at(std::string_view where, const std::string& message) {
  throw ParseError(str_cat(where, ": ", message));
}

const JsonValue* optional_field(const JsonValue& object, std::string_view name, std::string_view where) {
  const JsonValue* const value = object_at(object, where).find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const JsonValue& field(const JsonValue& object, std::string_view name, std::string_view where) {
  const JsonValue* const value = optional_field(object, name, where);
  if (value == nullptr) fail_at(where, "missing field " + std::string(name));
  return *value;
}

const JsonObject& object_at(const JsonValue& value, std::string_view where) {
  if (value.object() == nullptr) fail_at(where, "expected an object");
  return *value.object();
}

const JsonArray& array_at(const JsonValue& value, std::string_view where) {
  if (value.array() == nullptr) fail_at(where, "expected a list");
  return *value.array();
}

const std::string& string_at(const JsonValue& value, std::string_view where) {
  if (value.string() == nullptr) fail_at(where, "expected a string");
  return *value.string();
}

std::int64_t integer_at(const JsonValue& value, std::string_view where) {
  if (!value.is_integer()) fail_at(where, "expected an integer");
  if (!value.integer()) fail_at(where, "the integer exceeds the range of int64");
  return *value.integer();
}

double real_at(const JsonValue& value, std::string_view where) {
  if (const auto number = value.number()) return *number;
  const std::string_view name = value.string() != nullptr ? std::string_view(*value.string()) : "";
  if (name == "Infinity") return std::numeric_limits<double>::infinity();
  if (name == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (name == "NaN") return std::numeric_limits<double>::quiet_NaN();
  fail_at(where, "expected a number");
}

bool bool_at(const JsonValue& value, std::string_view where) {
  if (!value.boolean()) fail_at(where, "expected true or false");
  return *value.boolean();
}

JsonChoice choice_at(const JsonValue& value, std::string_view where) {
  const JsonMember* found = nullptr;
  for (const JsonMember& member : object_at(value, where)) {
    if (member.value.is_null()) continue;
    if (found != nullptr) fail_at(where, "expected one entry, not " + found->name + " and " + member.name);
    found = &member;
  }
  if (found == nullptr) fail_at(where, "expected an entry");
  return {found->name, &found->value};
}

}  // namespace penstock
