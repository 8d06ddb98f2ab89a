// Boot files, boot loader, Secure Boot.
#include "ops/probe/text_reader.h"

namespace spark::ops::probe {
namespace {

// menuentry 'Title' --class ... $menuentry_id_option 'gnulinux-7.0.0-...-advanced-UUID' {
std::string entry_id(const std::string& line) {
  const size_t option = line.find("menuentry_id_option");
  const size_t open = line.find('\'', option == std::string::npos ? line.size() : option);
  if (open == std::string::npos) return {};
  const size_t close = line.find('\'', open + 1);
  return close == std::string::npos ? std::string() : line.substr(open + 1, close - open - 1);
}

// linux /boot/vmlinuz-7.0.0-1019-nvidia root=... -> 7.0.0-1019-nvidia
std::string release_of(const std::string& line) {
  const size_t name = line.find("vmlinuz-");
  if (name == std::string::npos) return {};
  const size_t begin = name + 8;
  return line.substr(begin, std::min(line.find(' ', begin), line.size()) - begin);
}

bool has_word(const std::string& line, std::string_view word) {
  for (const std::string& each : words_of(line)) {
    if (each == word) return true;
  }
  return false;
}

// Titles and numbers as a default move when another kernel is installed: only an id is a pin.
void resolve_default(const std::string& literal, const std::string& saved, GrubFacts& grub) {
  const std::string wanted = literal == "${saved_entry}" || literal.empty() ? saved : literal;
  if (grub.entries.contains(wanted)) grub.default_entry = wanted;
}

std::string read_menu(const std::vector<std::string>& lines, GrubFacts& grub) {
  std::string literal, submenu, entry;
  for (const std::string& raw : lines) {
    const std::string line = trimmed(raw);
    if (line.rfind("set default=", 0) == 0) {
      std::string value = line.substr(12);
      if (value.size() >= 2 && value.front() == '"' && value.back() == '"')
        value = value.substr(1, value.size() - 2);
      // The generated file first copies ${next_entry}; the last literal counts.
      if (value != "${next_entry}") literal = value;
    } else if (line.rfind("submenu ", 0) == 0) {
      submenu = entry_id(line);
    } else if (line.rfind("menuentry ", 0) == 0) {
      entry = entry_id(line);
    } else if (line.rfind("linux", 0) == 0) {
      if (has_word(line, "splash")) ++grub.lines_with_splash;
      const std::string release = release_of(line);
      if (!entry.empty() && !release.empty())
        grub.entries[submenu.empty() ? entry : submenu + ">" + entry] = release;
    } else if (line[0] == '}') {
      if (entry.empty()) submenu.clear();
      entry.clear();
    }
  }
  return literal;
}

void read_grub(const FactReader& reader) {
  const CommandAnswer* menu = reader.answer("grub-menu");
  const CommandAnswer* environment = reader.answer("grub-environment");
  if (menu == nullptr) return;
  GrubFacts& grub = reader.facts().kernel.grub;
  std::vector<std::string> lines;
  for (const std::string& line : lines_of(menu->output)) {
    if (!trimmed(line).empty()) lines.push_back(line);
  }
  const std::string literal = read_menu(lines, grub);
  std::string saved;
  if (environment != nullptr) {
    for (const std::string& line : lines_of(environment->output)) {
      if (line.rfind("saved_entry=", 0) == 0) saved = line.substr(12);
      if (line.rfind("next_entry=", 0) == 0) grub.next_entry = line.substr(11);
    }
  }
  resolve_default(literal, saved, grub);
  grub.known = true;
}

void read_efi(const FactReader& reader) {
  const CommandAnswer* efi = reader.answer("efi");
  if (efi == nullptr) return;
  std::map<std::string, std::string> labels;
  std::vector<std::string> order;
  for (const std::string& line : lines_of(efi->output)) {
    if (line.rfind("BootOrder:", 0) == 0) {
      for (const std::string& number : split(trimmed(line.substr(10)), ',')) order.push_back(number);
    } else if (line.size() > 8 && line.rfind("Boot", 0) == 0 && (line[8] == '*' || line[8] == ' ')) {
      labels[line.substr(4, 4)] = trimmed(line.substr(9));
    }
  }
  if (order.empty()) return reader.fault("efi", "names no BootOrder");
  std::vector<HostFacts::BootEntry> entries;
  for (const std::string& number : order) entries.push_back({number, labels[number]});
  reader.facts().host.boot_entries = std::move(entries);
}

}  // namespace

void read_boot(const FactReader& reader) {
  KernelFacts& kernel = reader.facts().kernel;
  if (const CommandAnswer* boot = reader.answer("boot")) {
    for (const std::string& line : lines_of(boot->output)) {
      const auto words = words_of(line);
      if (words.size() != 2) {
        reader.fault("boot", "has the line \"" + line.substr(0, 60) + "\"");
      } else if (words[0] == "pages-64k") {
        kernel.pages_64k[words[1]] = true;
      } else {
        kernel.boot_files[words[1]] = words[0] == "file";
      }
    }
  }
  // mokutil says "SecureBoot enabled" or "SecureBoot disabled", and fails where there is no UEFI.
  if (const CommandAnswer* secure = reader.answer("secure-boot")) {
    if (secure->output.find("SecureBoot enabled") != std::string::npos) kernel.secure_boot = true;
    if (secure->output.find("SecureBoot disabled") != std::string::npos) kernel.secure_boot = false;
  }
  // For an enrolled key the tool exits with 1 in some versions, so the text counts.
  if (const CommandAnswer* key = reader.dump().command("fan-key")) {
    if (key->status <= 1 && !(key->output + key->error).empty()) {
      kernel.fan_key_enrolled = (key->output + key->error).find("is already enrolled") != std::string::npos;
    } else {
      reader.facts().failures["fan-key"] = key->failure();
    }
  }
  read_grub(reader);
  read_efi(reader);
}

}  // namespace spark::ops::probe
