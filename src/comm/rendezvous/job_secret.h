// The secret of a job: 128 random bits that the launcher passes to its ranks through the environment. It keys
// the names of the store entries and signs the greetings of the monitors, so that others can neither write
// entries nor forge greetings. docs/security.md describes the limits of this protection.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <filesystem>
#include <string>
#include <string_view>

namespace penstock::comm {

//! The environment variable that passes the secret to the ranks, in hexadecimal.
constexpr const char* kSecretVariable = "PENSTOCK_JOB_SECRET";

class JobSecret {
 public:
  //! An empty secret, for ranks that another launcher started: `protect` returns its argument, and signatures
  //! are empty.
  JobSecret() = default;

  //! Generates a secret. Throws CommError if the system provides no random numbers.
  static JobSecret random();
  //! Parses the result of `text`. Throws UsageError if it is invalid.
  static JobSecret parse(std::string_view text);
  //! Derives the secret from the content of a file. Throws UsageError if the file cannot be read, or is too
  //! short or too long.
  static JobSecret from_file(const std::filesystem::path& path);

  explicit operator bool() const { return !text_.empty(); }
  //! Returns 32 hexadecimal digits, or an empty string if the secret is empty.
  const std::string& text() const { return text_; }
  //! Returns a keyed hash of `message`: 40 hexadecimal digits that require the secret to compute.
  std::string sign(std::string_view message) const;
  //! Returns a view of `store` that replaces each key with its signature. A plain prefix would not be enough,
  //! because everyone who can reach the store can list its keys.
  c10::intrusive_ptr<c10d::Store> protect(c10::intrusive_ptr<c10d::Store> store) const;

 private:
  explicit JobSecret(std::string text) : text_(std::move(text)) {}

  std::string text_;
};

}  // namespace penstock::comm
