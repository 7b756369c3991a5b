// Formats error messages.
#include "base/text.h"

#include <penstock/base/error.h>

#include <cerrno>
#include <utility>

namespace penstock {
namespace {

std::string compose(const std::string& message, const ErrorContext& context, const std::string& hint) {
  std::string text = message;
  if (const std::string where = to_string(context); !where.empty()) text += " (" + where + ")";
  if (!hint.empty()) text += "\nhint: " + hint;
  return text;
}

std::string hint_for(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "free space on that disk (for example, keep fewer checkpoints), or use another directory";
    case EROFS:
      return "use a directory that this user can write to";
    case EACCES:
    case EPERM:
      return "check the permissions; to write, use a directory that this user can write to";
    case ENOENT:
      return "check the path: the file or its directory does not exist or was removed";
    case EBUSY:
      return "wait for the other run to end, stop it, or use another directory";
    case EMFILE:
    case ENFILE:
      return "raise the limit of open files, for example with `ulimit -n 4096`";
    default:
      return {};
  }
}

}  // namespace

void detail::throw_id_out_of_range() {
  throw UsageError("an id (of a rank, stage, microbatch or value) must fit in 32 bits");
}

std::string to_string(const ErrorContext& context) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (context.rank) add(str_cat("rank ", context.rank->value));
  if (context.stage) add(str_cat("stage ", context.stage->value));
  if (context.microbatch) add(str_cat("microbatch ", context.microbatch->value));
  if (!context.action.empty()) add("action " + context.action);
  if (!context.tensor.empty()) add("tensor " + context.tensor);
  if (!context.op.empty()) add("op " + context.op);
  return text;
}

ErrorContext ErrorContext::within(const ErrorContext& outer) const {
  ErrorContext merged = *this;
  if (!merged.rank) merged.rank = outer.rank;
  if (!merged.stage) merged.stage = outer.stage;
  if (!merged.microbatch) merged.microbatch = outer.microbatch;
  if (merged.action.empty()) merged.action = outer.action;
  if (merged.tensor.empty()) merged.tensor = outer.tensor;
  if (merged.op.empty()) merged.op = outer.op;
  return merged;
}

Error::Error(std::string message, ErrorContext context, std::string hint)
    : std::runtime_error(compose(message, context, hint)),
      message_(std::move(message)),
      context_(std::move(context)),
      hint_(std::move(hint)) {}

StorageError::StorageError(const std::string& message, int code, const std::string& hint)
    : Error(message, {}, hint.empty() ? hint_for(code) : hint), code_(code) {}

PeerFailed::PeerFailed(Rank peer, std::string cause, ErrorContext context)
    : CommError(str_cat("rank ", peer.value, " failed: ", cause), std::move(context)),
      peer_(peer),
      cause_(std::move(cause)) {}

}  // namespace penstock
