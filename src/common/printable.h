// Text from elsewhere (a node's answer, a server's message, what a file holds) made fit for a terminal, where
// ESC and its like move the cursor, set the title or repaint what was said, and a newline forges a line.
//
//   std::cout << "node2: " << one_line(answer) << "\n";
//
// `Error::describe()`, `Table` and `log()` do it for all that goes through them.
#pragma once

#include <string>
#include <string_view>

namespace spark {

// Every byte sequence that is not UTF-8 becomes U+FFFD, NUL as well.
std::string clean_text(std::string_view bytes);

// UTF-8 on one line: control characters (C1 as well), line separators and marks that turn the direction of
// writing become blanks.
std::string one_line(std::string_view text);

// The same line by line; tabs stay. `indent` stands before every line but the first, so that none of them
// passes for a line that we began.
std::string fit_lines(std::string_view text, std::string_view indent = {});

}  // namespace spark
