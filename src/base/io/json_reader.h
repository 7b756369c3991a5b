// The JSON reader: events for readers that check while they read, an immutable value for all others, and
// typed access to values of untrusted text, where a field of the wrong kind is a ParseError that says where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace penstock {

//! Lists and objects that are nested deeper are refused: destroying a value recurses.
inline constexpr int deepest_json = 500;

//! Receives the parts of a JSON text in their order. Any function may throw, which ends the reading.
class JsonHandler {
 public:
  JsonHandler() = default;
  JsonHandler(const JsonHandler&) = delete;
  JsonHandler& operator=(const JsonHandler&) = delete;
  virtual ~JsonHandler() = default;

  virtual void null() = 0;
  virtual void boolean(bool truth) = 0;
  virtual void unsigned_integer(std::uint64_t number) = 0;
  virtual void negative_integer(std::int64_t number) = 0;
  virtual void real(double number) = 0;  //!< also an integer that 64 bits cannot hold
  virtual void string(std::string& text) = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
  virtual void begin_object() = 0;
  virtual void key(std::string& name) = 0;
  virtual void end_object() = 0;
  //! The text is not JSON or is nested too deep; must throw.
  [[noreturn]] virtual void refuse(const std::string& problem) = 0;
};

//! Reads one whole text. Nesting takes one bit of memory per level, and no stack.
void read_json(std::string_view text, JsonHandler& handler);

class JsonValue;
struct JsonMember;
using JsonArray = std::vector<JsonValue>;

//! The members in file order. Of members with the same name only the last is kept.
class JsonObject {
 public:
  JsonObject();
  explicit JsonObject(std::vector<JsonMember> members);
  JsonObject(const JsonObject& other);
  JsonObject(JsonObject&& other) noexcept;
  JsonObject& operator=(const JsonObject& other);
  JsonObject& operator=(JsonObject&& other) noexcept;
  ~JsonObject();

  const JsonMember* begin() const;
  const JsonMember* end() const;
  std::size_t size() const;
  //! Null if there is no such member.
  const JsonValue* find(std::string_view name) const;

 private:
  std::vector<JsonMember> members_;
  std::vector<std::uint32_t> by_name_;  //!< members sorted by name; empty for a small object
};

//! One immutable JSON value. Destroying it does not allocate memory.
class JsonValue {
 public:
  using Content = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string,
                               JsonArray, JsonObject>;

  JsonValue() = default;  //!< null
  explicit JsonValue(Content content) : content_(std::move(content)) {}

  bool is_null() const { return std::holds_alternative<std::monostate>(content_); }
  //! An integer of any size, also one that `integer` cannot give.
  bool is_integer() const { return integer() || std::holds_alternative<std::uint64_t>(content_); }

  //! The content if it is of this kind, and nothing otherwise.
  std::optional<bool> boolean() const;
  std::optional<std::int64_t> integer() const;
  std::optional<std::uint64_t> unsigned_integer() const;
  std::optional<double> number() const;  //!< integers, too
  const std::string* string() const { return std::get_if<std::string>(&content_); }
  const JsonArray* array() const { return std::get_if<JsonArray>(&content_); }
  const JsonObject* object() const { return std::get_if<JsonObject>(&content_); }

 private:
  Content content_;
};

struct JsonMember {
  std::string name;
  JsonValue value;
};

//! Parses a whole record. ParseError, which names `where`, for text that is not JSON or is nested too deep.
JsonValue parse_json(std::string_view text, const std::string& where);
JsonValue parse_json(std::span<const std::uint8_t> bytes, const std::string& where);

[[noreturn]] void fail_at(const std::string& where, const std::string& message);

const JsonValue& field(const JsonValue& object, std::string_view name, const std::string& where);
//! Null if it is missing or null.
const JsonValue* optional_field(const JsonValue& object, std::string_view name, const std::string& where);

const JsonObject& object_at(const JsonValue& value, const std::string& where);
const JsonArray& array_at(const JsonValue& value, const std::string& where);
const std::string& string_at(const JsonValue& value, const std::string& where);
std::int64_t integer_at(const JsonValue& value, const std::string& where);
double real_at(const JsonValue& value, const std::string& where);  //!< also "Infinity", "-Infinity" and "NaN"
bool bool_at(const JsonValue& value, const std::string& where);

//! The one entry of a union: `{"as_int": 3}`. Entries that are null do not count.
struct JsonChoice {
  std::string name;
  const JsonValue* value;
};
JsonChoice choice_at(const JsonValue& value, const std::string& where);

}  // namespace penstock
