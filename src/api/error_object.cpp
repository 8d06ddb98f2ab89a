#include "api/error_object.h"

namespace spark::api {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

Json or_null(const std::optional<std::string>& text) {
  return text ? Json(*text) : Json(nullptr);
}

std::optional<std::string> text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  return found->is_string() ? found->get<std::string>() : found->dump();
}

}  // namespace

Json ErrorObject::json() const {
  return Json{
      {"error",
       Json{{"message", message}, {"type", type}, {"param", or_null(param)}, {"code", or_null(code)}}}};
}

ErrorObject bad_request(std::string message, std::optional<std::string> param,
                        std::optional<std::string> code) {
  return {400, std::move(message), type_of(400), std::move(param), std::move(code)};
}

ErrorObject model_not_found(const std::string& asked, const std::string& served) {
  return {404, "The model \"" + asked + "\" does not exist here; this server has \"" + served + "\".",
          type_of(404), "model", "model_not_found"};
}

ErrorObject http_error(int status, std::string message, std::optional<std::string> code) {
  return {status, std::move(message), type_of(status), std::nullopt, std::move(code)};
}

void throw_if_bad(const Faults& faults) {
  if (faults.empty()) return;
  std::string message;
  for (const Fault& fault : faults) {
    if (!message.empty()) message += "; ";
    const bool is_last_line = faults.more() > 0 && &fault == &*(faults.end() - 1);
    if (!is_last_line) message += fault.where.empty() ? "the body " : "`" + fault.where + "` ";
    message += fault.what;
    if (!fault.hint.empty()) message += " (" + fault.hint + ")";
  }
  const std::string& where = faults.front().where;
  throw RequestError(bad_request(std::move(message), where.empty() ? std::nullopt : std::optional(where)));
}

std::optional<ErrorObject> parse_error(std::string_view body, int status) {
  Json root;
  try {
    root = parse_json(body, "error body");
  } catch (const Error&) {
    return std::nullopt;
  }
  if (!root.is_object()) return std::nullopt;
  const auto inner = root.find("error");
  if (inner != root.end() && inner->is_string()) return http_error(status, inner->get<std::string>());
  const Json& object = inner != root.end() && inner->is_object() ? *inner : root;
  const auto message = text_of(object, "message");
  if (!message) return std::nullopt;
  return ErrorObject{status, *message, text_of(object, "type").value_or(type_of(status)),
                     text_of(object, "param"), text_of(object, "code")};
}

}  // namespace spark::api
