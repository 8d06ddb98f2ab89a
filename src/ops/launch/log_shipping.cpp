#include "ops/launch/log_shipping.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/descriptor.h"
#include "common/file.h"
#include "ops/site/text_forms.h"

namespace spark::ops {
namespace {

namespace fs = std::filesystem;

constexpr size_t kShipmentBytes = size_t{4} << 20;
constexpr const char* kCursorMark = "-- cursor: ";

std::string first_word(const std::string& text) {
  return text.substr(0, text.find(' '));
}

std::string after_word(const std::string& text) {
  const size_t blank = text.find(' ');
  return blank == std::string::npos ? std::string() : text.substr(blank + 1);
}

fs::path ring_file(const LogRing& ring, const std::string& node, int number) {
  return fs::path(ring.folder) / (node + (number == 0 ? "" : "." + std::to_string(number)) + ".log");
}

std::string cursor_path(const LogRing& ring, const std::string& node) {
  return ring.folder + "/" + node + ".cursor";
}

std::string read_cursor(const LogRing& ring, const std::string& node) {
  const std::string path = cursor_path(ring, node);
  return fs::exists(path) ? read_file(path) : std::string();
}

// Docker's lines begin with their time; those up to the cursor's time were shipped before.
LogChunk timed_chunk(std::string_view lines, const std::string& id, const std::string& position) {
  LogChunk chunk;
  std::string last = position;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size() - 1);
    const std::string_view line = lines.substr(0, end + 1);
    lines.remove_prefix(end + 1);
    const std::string time(line.substr(0, line.find(' ')));
    if (!position.empty() && time <= position) continue;
    chunk.text += line;
    if (time.size() > 19 && time[4] == '-') last = time;
  }
  chunk.cursor = id + " " + last;
  return chunk;
}

}  // namespace

std::string log_folder(const Repository& repository, const std::string& service) {
  return repository.absolute("results/private/logs/" + service);
}

std::string ship_script(const RankLaunch& launch, const std::string& cursor, size_t limit) {
  const std::string name = shell_quote(launch.service), id = shell_quote(first_word(cursor)),
                    position = shell_quote(after_word(cursor)), count = std::to_string(limit);
  const std::string known = "known=" + id + " position=" + position + "\n";
  switch (launch.runtime) {
    case LaunchRuntime::kContainer:
      return known + "id=$(docker container inspect -f '{{.Id}}' " + name +
             ") || exit 3\nprintf '%s\\n' \"$id\"\nset --\n"
             "[ \"$id\" != \"$known\" ] || [ -z \"$position\" ] || set -- --since \"$position\"\n"
             "docker logs --timestamps \"$@\" " +
             name + " 2>&1 | head -c " + count + "\n";
    case LaunchRuntime::kUnit:
      return known +
             "sudo=; [ \"$(id -u)\" = 0 ] || sudo='sudo -n'\necho unit\nset --\n"
             "[ -z \"$position\" ] || set -- --after-cursor \"$position\"\n"
             "$sudo journalctl --no-pager --show-cursor -o short-iso-precise -n 20000 -u " +
             name + " \"$@\"\n";
    case LaunchRuntime::kProcess:
      break;
  }
  return known +
         "folder=/run/spark-launch; [ \"$(id -u)\" = 0 ] || folder=${XDG_RUNTIME_DIR:-/tmp}/spark-launch\n"
         "log=$folder/" +
         name +
         ".log\nid=$(stat -c %i \"$log\") || exit 3\nprintf '%s\\n' \"$id\"\n"
         "[ \"$id\" = \"$known\" ] || position=0\n"
         "tail -c +$((position + 1)) \"$log\" | head -c " +
         count + "\n";
}

LogChunk read_log_answer(LaunchRuntime runtime, std::string_view answer, const std::string& cursor,
                         size_t limit) {
  LogChunk chunk;
  chunk.cursor = cursor;
  const size_t line = answer.find('\n');
  if (line == std::string_view::npos) return chunk;
  const std::string id(answer.substr(0, line));
  std::string_view text = answer.substr(line + 1);
  const bool same = id == first_word(cursor);
  const std::string position = same ? after_word(cursor) : std::string();
  const bool cut = text.size() >= limit;
  if (runtime == LaunchRuntime::kProcess) {
    chunk.text = text;
    const int64_t offset = same ? whole_number(position).value_or(0) : 0;
    chunk.cursor = id + " " + std::to_string(offset + static_cast<int64_t>(text.size()));
    chunk.more = cut;
    return chunk;
  }
  if (runtime == LaunchRuntime::kUnit) {
    const size_t mark = text.rfind(kCursorMark);
    if (mark == std::string_view::npos) return chunk;
    std::string next(text.substr(mark + std::strlen(kCursorMark)));
    while (!next.empty() && next.back() == '\n') next.pop_back();
    chunk.text = text.substr(0, mark);
    if (chunk.text.starts_with("-- No entries")) chunk.text.clear();
    chunk.cursor = id + " " + next;
    return chunk;
  }
  // A line that the limit cut comes again, whole.
  if (cut) text = text.substr(0, text.rfind('\n') + 1);
  chunk = timed_chunk(text, id, position);
  chunk.more = cut && !chunk.text.empty();
  return chunk;
}

void append_to_ring(const LogRing& ring, const std::string& node, std::string_view text) {
  fs::create_directories(ring.folder);
  const fs::path newest = ring_file(ring, node, 0);
  std::error_code absent;
  const auto size = fs::file_size(newest, absent);
  if (!absent && size > 0 && size + text.size() > ring.max_bytes) {
    for (int number = ring.files - 1; number > 0; --number) {
      if (fs::exists(ring_file(ring, node, number - 1)))
        fs::rename(ring_file(ring, node, number - 1), ring_file(ring, node, number));
    }
  }
  const Descriptor file(::open(newest.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
  while (file.open() && !text.empty()) {
    const ssize_t count = ::write(file.get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.remove_prefix(static_cast<size_t>(count));
  }
  if (!file.open() || !text.empty())
    throw Error(std::string("cannot be written: ") + std::strerror(errno), newest.string());
}

std::vector<ShippedLog> ship_logs(const Remote& remote, const Site& site,
                                  const std::vector<RankLaunch>& launches, const LogRing& ring,
                                  std::stop_token stop) {
  std::vector<ShippedLog> shipped;
  std::vector<size_t> asked;
  for (size_t i = 0; i < launches.size(); ++i) {
    shipped.push_back({launches[i].node, 0, {}});
    asked.push_back(i);
  }
  while (!asked.empty() && !stop.stop_requested()) {
    std::vector<RemoteCall> calls;
    std::vector<std::string> cursors;
    for (const size_t i : asked) {
      cursors.push_back(read_cursor(ring, launches[i].node));
      calls.push_back(
          {remote_node(site.nodes, *site.nodes.find(launches[i].node)),
           {.script = ship_script(launches[i], cursors.back(), kShipmentBytes), .timeout_s = 60}});
    }
    const std::vector<RemoteResult> results = remote.run_all(calls, stop);
    std::vector<size_t> again;
    for (size_t k = 0; k < asked.size(); ++k) {
      const RankLaunch& launch = launches[asked[k]];
      ShippedLog& log = shipped[asked[k]];
      if (!results[k].ok()) {
        log.problem = results[k].exit_code == 3 ? "there is no log" : results[k].describe();
        continue;
      }
      const LogChunk chunk = read_log_answer(launch.runtime, results[k].output, cursors[k], kShipmentBytes);
      if (!chunk.text.empty()) append_to_ring(ring, launch.node, chunk.text);
      if (chunk.cursor != cursors[k]) {
        fs::create_directories(ring.folder);
        write_file_atomic(cursor_path(ring, launch.node), chunk.cursor);
      }
      log.bytes += chunk.text.size();
      if (chunk.more) again.push_back(asked[k]);
    }
    asked = std::move(again);
  }
  return shipped;
}

}  // namespace spark::ops
