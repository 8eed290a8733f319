// SPDX-License-Identifier: Apache-2.0
// JSON text of an error, as the C ABI hands it out.
#include "error.hpp"

#include <cstdio>

namespace ptxsim {

std::string json_quote(const std::string& text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c < 0x20 || c >= 0x7f) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\u%04x", c);
      out += buffer;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

std::string hex(u64 value) {
  char buffer[24];
  std::snprintf(buffer, sizeof buffer, "0x%llx", static_cast<unsigned long long>(value));
  return buffer;
}

std::string SimError::to_json() const {
  std::string out = "{\"kind\":" + json_quote(kind) + ",\"message\":" + json_quote(message);
  out += ",\"line\":" + std::to_string(line);
  if (!text.empty()) out += ",\"text\":" + json_quote(text);
  if (!kernel.empty()) out += ",\"kernel\":" + json_quote(kernel);
  if (has_cta)
    out += ",\"cta\":[" + std::to_string(cta[0]) + "," + std::to_string(cta[1]) + "," + std::to_string(cta[2]) + "]";
  if (thread >= 0) out += ",\"thread\":" + std::to_string(thread);
  if (has_address) out += ",\"address\":" + std::to_string(address) + ",\"distance\":" + std::to_string(distance);
  if (!nearest.empty()) out += ",\"nearest\":" + json_quote(nearest);
  if (!report.empty()) out += ",\"report\":" + json_quote(report);
  return out + "}";
}

}  // namespace ptxsim
