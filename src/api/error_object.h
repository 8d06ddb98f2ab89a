// Errors on the wire, as OpenAI's API has them: {"error": {"message", "type", "param", "code"}} with an HTTP
// status.
//
//   throw RequestError(bad_request("is 3; it must be between 0 and 2", "temperature"));
//   response.body = error.object().json().dump();
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/error.h"
#include "common/json.h"

namespace spark::api {

struct ErrorObject {
  int status = 500;                  // HTTP status
  std::string message;               // what is wrong and what to do
  std::string type;                  // "invalid_request_error", "authentication_error", ...
  std::optional<std::string> param;  // JSON path of the field at fault
  std::optional<std::string> code;   // for programs: "model_not_found", "context_length_exceeded", ...

  Json json() const;
};

// An ErrorObject on its way up: thrown by the parsers of requests, caught by the server.
class RequestError : public Error {
 public:
  explicit RequestError(ErrorObject object)
      : Error(object.message, object.param.value_or("")), object_(std::move(object)) {}
  const ErrorObject& object() const { return object_; }

 private:
  ErrorObject object_;
};

ErrorObject bad_request(std::string message, std::optional<std::string> param = {},
                        std::optional<std::string> code = {});
ErrorObject model_not_found(const std::string& asked, const std::string& served);
// Any other status; the type follows from it.
ErrorObject http_error(int status, std::string message, std::optional<std::string> code = {});

// Throws one 400 that names every fault; `param` is the path of the first. Does nothing when there is none.
void throw_if_bad(const Faults& faults);

// Reads the error object of a response body of the given status; nullopt when the body is no error object.
// vLLM's older form, the fields at the top level, is understood too.
std::optional<ErrorObject> parse_error(std::string_view body, int status);

}  // namespace spark::api
