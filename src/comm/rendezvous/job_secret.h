// The secret of a job: 128 random bits that the launcher passes to its ranks through the environment. It keys
// the names of the store entries and signs the greetings of the monitors, so that others can neither write
// entries nor forge greetings. docs/security.md describes the limits of this protection.
#pragma once

#include "comm/rendezvous/environment.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <filesystem>
#include <string>
#include <string_view>

namespace penstock::comm {

//! The environment variable that passes the secret to the ranks, in hexadecimal.
constexpr const char* kSecretVariable = "PENSTOCK_JOB_SECRET";
//! The environment variable that names a token file, for ranks of other launchers.
constexpr const char* kTokenFileVariable = "PENSTOCK_TOKEN_FILE";

class JobSecret {
 public:
  //! An empty secret, for ranks that another launcher started: `protect` returns its argument, and signatures
  //! are empty.
  JobSecret() = default;

  //! Generates a secret. Throws CommError if the system provides no random numbers.
  static JobSecret random();
  //! Parses the result of `text`. Throws UsageError if it is invalid.
  static JobSecret parse(std::string_view text);
  //! Derives the secret from the content of a file. Throws StorageError if the file cannot be read, and
  //! UsageError if it is too short or too long.
  static JobSecret from_file(const std::filesystem::path& path);
  //! Derives a value from what identifies a job. It keeps jobs apart, but it is not secret: others may know
  //! the identity.
  static JobSecret from_identity(std::string_view identity);

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

//! The secret of a rank, in this order: PENSTOCK_JOB_SECRET; the file that PENSTOCK_TOKEN_FILE names; the
//! identity of the job; empty if it has none. Throws UsageError if a variable is invalid.
JobSecret read_job_secret(const EnvironmentLookup& lookup, const LaunchedRank& rank);

}  // namespace penstock::comm
