// SPDX-License-Identifier: Apache-2.0
#include "core/json.h"

#include <nlohmann/json.hpp>

namespace headrace {

std::string json_text(std::string_view value) {
  return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_text(double value) { return nlohmann::json(value).dump(); }

JsonObject& JsonObject::add_raw(std::string_view key, std::string_view json) {
  if (!body_.empty()) body_ += ", ";
  body_ += json_text(key);
  body_ += ": ";
  body_ += json;
  return *this;
}

JsonArray& JsonArray::add_raw(std::string_view json) {
  if (!body_.empty()) body_ += ", ";
  body_ += json;
  return *this;
}

}  // namespace headrace
