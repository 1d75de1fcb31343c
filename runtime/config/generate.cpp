// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/generate.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/config/suggest.h"

namespace headrace::config {
namespace {

using Json = nlohmann::ordered_json;

const Field* find(std::span<const FieldTable* const> tables, std::string_view path) {
  for (const FieldTable* table : tables) {
    for (const Field& field : table->fields()) {
      if (field.path == path) return &field;
    }
  }
  return nullptr;
}

const Field& target(std::span<const FieldTable* const> tables, const Field& field) {
  const Field* real = field.alias_of.empty() ? nullptr : find(tables, field.alias_of);
  return real == nullptr ? field : *real;
}

std::vector<const Field*> sorted(std::span<const FieldTable* const> tables) {
  std::map<std::string_view, const Field*> by_path;
  for (const FieldTable* table : tables) {
    for (const Field& field : table->fields()) by_path.emplace(field.path, &field);
  }
  std::vector<const Field*> out;
  for (const auto& [path, field] : by_path) out.push_back(field);
  return out;
}

std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string default_text(const Field& field) { return field.default_json.empty() ? "unset" : field.default_json; }

void used_rows(std::string& out, std::span<const FieldTable* const> tables, bool native) {
  out += "| key | takes | default | meaning | on resume |\n| --- | --- | --- | --- | --- |\n";
  for (const Field* field : sorted(tables)) {
    if (field->use != FieldUse::kUsed || field->path.starts_with("headrace.") != native) continue;
    const Field& real = target(tables, *field);
    out +=
        fmt::format("| `{}` | {} | {} | {} | {} |\n", field->path, cell(allowed_text(real)), cell(default_text(real)),
                    cell(field->doc), real.on_resume == OnResume::kMayChange ? "may change" : "fixed");
  }
}

void reason_rows(std::string& out, std::span<const FieldTable* const> tables, FieldUse use) {
  out += use == FieldUse::kRefused ? "| key | only | why |\n| --- | --- | --- |\n" : "| key | why |\n| --- | --- |\n";
  for (const Field* field : sorted(tables)) {
    if (field->use != use) continue;
    if (use == FieldUse::kRefused) {
      const std::string neutral = field->type == FieldType::kSection ? "`\"enabled\": false`" : default_text(*field);
      out += fmt::format("| `{}` | {} | {} |\n", field->path, neutral, cell(field->reason));
    } else {
      out += fmt::format("| `{}` | {} |\n", field->path, cell(field->reason));
    }
  }
}

Json type_schema(const Field& field) {
  Json schema;
  const auto number_range = [&](Json& at) {
    if (field.minimum > -std::numeric_limits<double>::infinity())
      at[field.above_minimum ? "exclusiveMinimum" : "minimum"] = field.minimum;
    if (field.maximum < std::numeric_limits<double>::infinity())
      at[field.below_maximum ? "exclusiveMaximum" : "maximum"] = field.maximum;
  };
  const Json text = {{"type", "string"}, {"minLength", 1}};
  switch (field.type) {
    case FieldType::kBool: schema["type"] = "boolean"; break;
    case FieldType::kInteger:
    case FieldType::kBytes:
      schema["type"] = "integer";
      if (field.smallest != std::numeric_limits<std::int64_t>::min()) schema["minimum"] = field.smallest;
      if (field.largest != std::numeric_limits<std::int64_t>::max()) schema["maximum"] = field.largest;
      break;
    case FieldType::kNumber:
      schema["type"] = "number";
      number_range(schema);
      break;
    case FieldType::kText: schema = text; break;
    case FieldType::kChoice: schema["enum"] = field.choices; break;
    case FieldType::kTexts: schema["anyOf"] = {text, {{"type", "array"}, {"items", text}, {"minItems", 1}}}; break;
    case FieldType::kNumbers: {
      Json item = {{"type", "number"}};
      number_range(item);
      schema = {{"type", "array"}, {"items", item}, {"minItems", field.length}, {"maxItems", field.length}};
      break;
    }
    case FieldType::kSection: schema["type"] = "object"; break;
  }
  return schema;
}

Json field_schema(const Field& field, const Field& real) {
  Json schema = type_schema(real);
  Json choices = Json::array();
  if (real.type == FieldType::kBytes)
    choices.push_back({{"type", "string"}, {"pattern", "^[0-9.]+ *([kKmMgGtT]([iI]?[bB])?|[bB])?$"}});
  if (real.text_booleans) choices.push_back({{"enum", {"true", "false"}}});
  if (real.allows_auto) choices.push_back({{"const", "auto"}});
  if (real.allows_null) choices.push_back({{"type", "null"}});
  if (!choices.empty()) {
    choices.insert(choices.begin(), schema);
    schema = Json{{"anyOf", choices}};
  }
  std::string words = field.doc;
  if (real.use == FieldUse::kNoEffect) words += " No effect here: " + real.reason + ".";
  if (real.use == FieldUse::kRefused) words += " Not supported: " + real.reason + ".";
  schema["description"] = words;
  if (!real.default_json.empty()) schema["default"] = Json::parse(real.default_json);
  return schema;
}

// The object schema of a section, made where it is missing.
Json& section_at(Json& root, std::string_view path) {
  Json* at = &root;
  while (true) {
    const std::size_t dot = path.find('.');
    if (dot == std::string_view::npos) return (*at)["properties"];
    Json& child = (*at)["properties"][std::string(path.substr(0, dot))];
    if (child.is_null()) {
      child = {{"type", {"object", "null"}},
               {"properties", Json::object()},
               {"patternProperties", {{"^_", true}}},
               {"additionalProperties", false}};
    }
    at = &child;
    path.remove_prefix(dot + 1);
  }
}

std::string explain_field(const Field& field, const Field& real) {
  std::string out = field.path + "\n  " + field.doc + "\n";
  if (&field != &real) out += "  same as:   " + real.path + "\n";
  out += fmt::format("  takes:     {}\n  default:   {}\n", allowed_text(real), default_text(real));
  if (real.use == FieldUse::kNoEffect) return out + "  here:      accepted, no effect: " + real.reason + "\n";
  if (real.use == FieldUse::kRefused) return out + "  here:      only its default: " + real.reason + "\n";
  if (!real.later_choices.empty()) out += fmt::format("  not yet:   {}\n", fmt::join(real.later_choices, ", "));
  return out + "  on resume: " + (real.on_resume == OnResume::kMayChange ? "may change\n" : "must be the same\n");
}

}  // namespace

std::string settings_markdown(std::span<const FieldTable* const> tables) {
  std::string out =
      "# Settings\n\nMade from the code (`./dev docs`); do not edit.\n\nA config is one JSON file; comments "
      "(`//`, `/* */`, `#`) and trailing commas are fine, unknown and duplicate keys are errors, keys that start with "
      "`_` are "
      "remarks. `key=value` arguments take the full path and override the file. `\"auto\"` is resolved by the plan and "
      "printed.\n\n"
      "## Native keys\n\n";
  used_rows(out, tables, true);
  out += "\n## DeepSpeed's keys\n\nSame names, meaning and defaults as there.\n\n";
  used_rows(out, tables, false);
  out += "\n## Accepted without effect\n\n";
  reason_rows(out, tables, FieldUse::kNoEffect);
  out += "\n## Refused, because they would change results\n\nThe neutral value is accepted.\n\n";
  reason_rows(out, tables, FieldUse::kRefused);
  return out;
}

std::string settings_schema(std::span<const FieldTable* const> tables) {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "Headrace config"},
               {"type", "object"},
               {"properties", Json::object()},
               {"patternProperties", {{"^_", true}}},
               {"additionalProperties", false}};
  for (const Field* field : sorted(tables)) {
    const std::size_t dot = field->path.rfind('.');
    const std::string name = dot == std::string::npos ? field->path : field->path.substr(dot + 1);
    section_at(root, field->path)[name] = field_schema(*field, target(tables, *field));
  }
  return root.dump(2) + "\n";
}

Result<std::string> explain(std::span<const FieldTable* const> tables, std::string_view path) {
  std::string out;
  std::vector<std::string> paths;
  for (const std::string& whole : {std::string(path), "headrace." + std::string(path)}) {
    for (const Field* field : sorted(tables)) {
      if (out.empty()) paths.push_back(field->path);
      const bool member = path.empty() || (field->path.starts_with(whole) && field->path.size() > whole.size() &&
                                           field->path[whole.size()] == '.');
      if (field->path == whole || member) out += explain_field(*field, target(tables, *field));
    }
    if (!out.empty()) return out;
  }
  const std::string near = nearest(path, paths);
  return make_error(
      ErrorCode::kUsage, fmt::format("there is no key \"{}\"", path),
      near.empty() ? "headrace config settings lists all keys" : fmt::format("did you mean \"{}\"?", near));
}

}  // namespace headrace::config
