// The secret of a job: 128 random bits that the launcher hands to its ranks through the environment. It names
// the job's entries in the store and signs the monitors' greetings, so that nobody else can write the one or
// forge the other. What that protects, and what not: docs/security.md.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <filesystem>
#include <string>
#include <string_view>

namespace penstock {

//! The environment variable that carries it to the ranks, in hexadecimal.
constexpr const char* kSecretVariable = "PENSTOCK_JOB_SECRET";

class JobSecret {
 public:
  //! No secret, for ranks that another launcher started: `protect` returns its argument, signatures are
  //! empty.
  JobSecret() = default;

  //! A new one. CommError if the system has no random numbers.
  static JobSecret random();
  //! From what `text` returned; UsageError for anything else.
  static JobSecret parse(std::string_view text);
  //! Derived from the content of a file, the same on every node; UsageError if it cannot be read or is too
  //! short.
  static JobSecret from_file(const std::filesystem::path& path);

  explicit operator bool() const { return !text_.empty(); }
  //! 32 hexadecimal digits; empty without a secret.
  const std::string& text() const { return text_; }
  //! A keyed hash of `message`: 40 hexadecimal digits that only holders of the secret can compute.
  std::string sign(std::string_view message) const;
  //! A view of `store` in which every key is replaced by its signature. The names of existing keys can be
  //! listed by anyone who reaches the store, hence not a plain prefix.
  c10::intrusive_ptr<c10d::Store> protect(c10::intrusive_ptr<c10d::Store> store) const;

 private:
  explicit JobSecret(std::string text) : text_(std::move(text)) {}

  std::string text_;
};

}  // namespace penstock
