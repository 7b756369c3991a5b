// The JSON reader: an event interface, an immutable value type, and typed access to untrusted input. A field
// of the wrong type is a ParseError that names its location.
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

//! The maximum nesting depth of lists and objects. It is limited because destroying a value recurses.
inline constexpr int kMaxJsonDepth = 500;

//! Receives the elements of a JSON text in order. Any function may throw to stop reading.
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
  virtual void real(double number) = 0;  //!< also integers that exceed 64 bits
  virtual void string(std::string& text) = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
  virtual void begin_object() = 0;
  virtual void key(std::string& name) = 0;
  virtual void end_object() = 0;
  //! Called if the text is not valid JSON or is nested too deeply; must throw.
  [[noreturn]] virtual void refuse(const std::string& problem) = 0;
};

//! Reads a complete text. Nesting uses one bit of memory per level and no stack.
void read_json(std::string_view text, JsonHandler& handler);

class JsonValue;
struct JsonMember;
using JsonArray = std::vector<JsonValue>;

//! The members in file order. If a name occurs several times, only the last member is kept.
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
  std::vector<std::uint32_t> by_name_;  //!< member indices sorted by name; empty for small objects
};

//! One immutable JSON value. Destroying it does not allocate memory.
class JsonValue {
 public:
  using Content = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string,
                               JsonArray, JsonObject>;

  JsonValue() = default;  //!< null
  explicit JsonValue(Content content) : content_(std::move(content)) {}

  bool is_null() const { return std::holds_alternative<std::monostate>(content_); }
  //! Also true for integers that exceed the range of `integer`.
  bool is_integer() const { return integer() || std::holds_alternative<std::uint64_t>(content_); }

  //! The content if it has this type; nullopt or null otherwise.
  std::optional<bool> boolean() const;
  std::optional<std::int64_t> integer() const;
  std::optional<std::uint64_t> unsigned_integer() const;
  std::optional<double> number() const;  //!< also integers
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

//! Parses a complete text. Throws a ParseError that names `where` if it is invalid or nested too deeply.
JsonValue parse_json(std::string_view text, const std::string& where);
JsonValue parse_json(std::span<const std::uint8_t> bytes, const std::string& where);

[[noreturn]] void fail_at(std::string_view where, const std::string& message);

const JsonValue& field(const JsonValue& object, std::string_view name, std::string_view where);
//! Null if the field is missing or null.
const JsonValue* optional_field(const JsonValue& object, std::string_view name, std::string_view where);

const JsonObject& object_at(const JsonValue& value, std::string_view where);
const JsonArray& array_at(const JsonValue& value, std::string_view where);
const std::string& string_at(const JsonValue& value, std::string_view where);
std::int64_t integer_at(const JsonValue& value, std::string_view where);
double real_at(const JsonValue& value, std::string_view where);  //!< also "Infinity", "-Infinity" and "NaN"
bool bool_at(const JsonValue& value, std::string_view where);

//! The single entry of a union: `{"as_int": 3}`. Null entries are ignored.
struct JsonChoice {
  std::string name;
  const JsonValue* value;
};
JsonChoice choice_at(const JsonValue& value, std::string_view where);

}  // namespace penstock
