// Reads a request, runs its operation and reports errors.
#include "api/answer.h"

#include "api/operations.h"
#include "base/json.h"
#include "base/text.h"

#include <penstock/base/error.h>

#include <array>
#include <exception>

namespace penstock::playground {
namespace {

struct Operation {
  std::string_view name;
  Answer (*run)(const Request& request);
};

constexpr std::array kOperations = {
    Operation{"schedules", list_schedules}, Operation{"simulate", simulate_source},
    Operation{"validate", validate_file},   Operation{"plan", find_plans},
    Operation{"export", export_source},
};

Answer run(const Request& request) {
  std::vector<std::string> names;
  for (const Operation& operation : kOperations) {
    if (operation.name == request.operation) return operation.run(request);
    names.emplace_back(operation.name);
  }
  throw UsageError("unknown operation " + quote(request.operation), {}, "use one of " + join(names, ", "));
}

Answer failure(const std::string& message, const std::string& hint) {
  JsonWriter out;
  out.begin_object().key("error").begin_object();
  out.field("message", message).field("hint", hint).end_object().end_object();
  return {out.text(), {}};
}

}  // namespace

Answer answer(std::string_view request) {
  try {
    return run(read_request(request));
  } catch (const Error& error) {
    return failure(error.message(), error.hint());
  } catch (const std::bad_alloc&) {
    return failure("not enough memory", "use fewer ranks, stages or microbatches");
  } catch (const std::exception& error) {
    return failure(error.what(), "");
  }
}

}  // namespace penstock::playground
