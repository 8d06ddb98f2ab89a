// Addresses with what may be a secret in them left out, for whatever is printed or kept.
#pragma once

#include <string>
#include <string_view>

namespace spark {

//   "https://TOKEN@host/x?token=T"  ->  "https://...@host/x?..."
//   "ssh://git:word@host/x"         ->  "ssh://git:...@host/x"     (SSH's user is a name, HTTP's may be a
//   token)
// A text without "SCHEME://" or with neither of these comes back as it is.
std::string without_url_secrets(std::string_view url);

// The same for every address within a text, such as what a tool said: each ends at a blank or a quotation
// mark.
std::string text_without_url_secrets(std::string_view text);

}  // namespace spark
