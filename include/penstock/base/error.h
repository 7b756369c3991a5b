// The exception hierarchy. Every error states what went wrong, where (rank, stage, microbatch, action,
// tensor, op) and, if known, how to fix it. docs/errors.md lists the recoverable ones.
#pragma once

#include <penstock/base/ids.h>

#include <optional>
#include <stdexcept>
#include <string>

namespace penstock {

//! Where an error occurred; unknown fields are unset.
struct ErrorContext {
  std::optional<Rank> rank;
  std::optional<StageId> stage;
  std::optional<MicrobatchId> microbatch;
  std::string action;  //!< the action's text, for example `2F0`
  std::string tensor;  //!< the tensor's path in its tree, for example `args[0].mask`
  std::string op;      //!< an operator or a collective

  //! Returns this context with unset fields taken from `outer`.
  ErrorContext within(const ErrorContext& outer) const;
};

//! `rank 1, stage 3, microbatch 2, …`; empty when nothing is known.
std::string to_string(const ErrorContext& context);

//! Base class of all errors. `what()` contains message, context and hint.
class Error : public std::runtime_error {
 public:
  explicit Error(std::string message, ErrorContext context = {}, std::string hint = {});

  const std::string& message() const { return message_; }
  const ErrorContext& context() const { return context_; }
  const std::string& hint() const { return hint_; }

 private:
  std::string message_;
  ErrorContext context_;
  std::string hint_;
};

//! Incorrect use of the API: an invalid argument, an unsupported count, a call in the wrong order.
class UsageError : public Error {
  using Error::Error;
};

//! Text or a file that cannot be parsed; the message contains the position.
class ParseError : public Error {
  using Error::Error;
};

//! A schedule or program that the validator rejected.
class ScheduleError : public Error {
  using Error::Error;
};

//! A tensor with an unexpected shape, strides or dtype.
class ShapeError : public Error {
  using Error::Error;
};

//! The operating system refused to read or write a file: no space, no permission, a removed directory.
class StorageError : public Error {
 public:
  //! `code` is an errno. Without a hint, it gets the usual one for that code.
  StorageError(const std::string& message, int code, const std::string& hint = {});

  int code() const { return code_; }

 private:
  int code_;
};

//! A communication failure: setup, a missing backend, the store, or one of the more specific errors below.
class CommError : public Error {
  using Error::Error;
};

//! A wait timed out; the message states who waited for whom, for what, and since when.
class TimeoutError : public CommError {
  using CommError::CommError;
};

//! Another rank crashed, threw or was killed, or left its world while this rank still waited for it.
class PeerFailed : public CommError {
 public:
  PeerFailed(Rank peer, std::string cause, ErrorContext context = {});

  Rank peer() const { return peer_; }
  //! The error message or exit status of the failed rank.
  const std::string& cause() const { return cause_; }

 private:
  Rank peer_;
  std::string cause_;
};

}  // namespace penstock
