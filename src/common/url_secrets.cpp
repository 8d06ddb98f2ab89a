#include "common/url_secrets.h"

#include <algorithm>
#include <cctype>

namespace spark {
namespace {

// The end of the name and password in "name:word@host/path"; npos: there are none.
size_t end_of_user(std::string_view address) {
  const std::string_view authority = address.substr(0, address.find('/'));
  const size_t at = authority.rfind('@');
  if (at != std::string_view::npos) return at;
  // "name:wo/rd@host": a password may hold a slash that nobody escaped. What stands there is no port.
  const size_t colon = authority.find(':');
  if (colon == std::string_view::npos) return colon;
  const bool is_port = authority.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
  return is_port ? std::string_view::npos : address.rfind('@');
}

}  // namespace

std::string without_url_secrets(std::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme == std::string_view::npos) return std::string(url);
  const size_t begin = scheme + 3;
  const size_t query = std::min(url.find('?', begin), url.size());
  std::string_view address = url.substr(begin, query - begin);
  std::string text(url.substr(0, begin));
  if (const size_t end = end_of_user(address); end != std::string_view::npos) {
    const std::string_view user = address.substr(0, end);
    const size_t colon = std::min(user.find(':'), user.size());
    if (!url.starts_with("http")) text += user.substr(0, colon);
    if (!url.starts_with("http") && colon < user.size()) text += ':';
    if (url.starts_with("http") || colon < user.size()) text += "...";
    address.remove_prefix(end);
  }
  text += address;
  return query + 1 < url.size() ? text + "?..." : text + std::string(url.substr(query));
}

std::string text_without_url_secrets(std::string_view text) {
  std::string clean;
  while (!text.empty()) {
    const size_t scheme = text.find("://");
    if (scheme == std::string_view::npos) break;
    size_t begin = scheme;
    while (begin > 0 && std::isalnum(static_cast<unsigned char>(text[begin - 1])) != 0) --begin;
    const size_t end = std::min(text.find_first_of(" \t\r\n\"'`<>", scheme), text.size());
    clean += text.substr(0, begin);
    clean += without_url_secrets(text.substr(begin, end - begin));
    text.remove_prefix(end);
  }
  return clean += text;
}

}  // namespace spark
