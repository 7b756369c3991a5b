// The error family. Every error says what went wrong, where (rank, stage, microbatch, action, tensor, op), and,
// where we know it, what to do. docs/errors.md says which ones a program can recover from.
#pragma once

#include <penstock/base/ids.h>

#include <optional>
#include <stdexcept>
#include <string>

namespace penstock {

//! Where an error happened; only the parts that are known are set.
struct ErrorContext {
  std::optional<Rank> rank;
  std::optional<StageId> stage;
  std::optional<MicrobatchId> microbatch;
  std::string action;  //!< the action's text, for example `2F0`
  std::string tensor;  //!< the tensor's place in its tree, for example `args[0].mask`
  std::string op;      //!< an operator or a collective

  //! `rank 1, stage 3, microbatch 2, …`; empty when nothing is known.
  std::string text() const;

  //! This context with the gaps filled from `outer`.
  ErrorContext within(const ErrorContext& outer) const;
};

//! The root of the family. `what()` is the whole text: message, context and hint.
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

//! The caller asked for something that cannot be: a bad argument, an illegal count, a call in the wrong order.
class UsageError : public Error {
  using Error::Error;
};

//! Text or a file that cannot be read; the message holds the position.
class ParseError : public Error {
  using Error::Error;
};

//! A schedule or program that the validator refused.
class ScheduleError : public Error {
  using Error::Error;
};

//! Tensors that are not of the promised shape, stride or dtype.
class ShapeError : public Error {
  using Error::Error;
};

//! Communication failed in a way that is no single peer's fault (set-up, a missing backend, the store).
class CommError : public Error {
  using Error::Error;
};

//! A wait ended without its event; the message says who waited for whom, for what, since when.
class TimeoutError : public CommError {
  using CommError::CommError;
};

//! Another rank died, threw or was killed.
class PeerFailed : public CommError {
 public:
  PeerFailed(Rank peer, std::string cause, ErrorContext context = {});

  Rank peer() const { return peer_; }
  //! What the failed rank said, or how it ended.
  const std::string& cause() const { return cause_; }

 private:
  Rank peer_;
  std::string cause_;
};

}  // namespace penstock
