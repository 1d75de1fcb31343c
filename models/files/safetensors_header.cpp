// SPDX-License-Identifier: Apache-2.0
#include "models/files/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

namespace headrace::models {
namespace {

struct StoredType {
  const char* name;
  int bits;
};
constexpr std::array<StoredType, 22> kStoredTypes = {
    {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
     {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
     {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
     {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}}};

int stored_bits(std::string_view name) {
  for (const StoredType& type : kStoredTypes) {
    if (name == type.name) return type.bits;
  }
  return 0;
}

std::optional<DType> weight_dtype(std::string_view name) {
  for (const DType dtype : {DType::kFp32, DType::kBf16, DType::kFp16}) {
    if (name == stored_dtype_name(dtype)) return dtype;
  }
  return std::nullopt;
}

// A DOM would keep the last of two equal keys and forget the first, so the header is taken event by event.
class HeaderHandler {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  bool null() { return refuse_value("null"); }
  bool boolean(bool) { return refuse_value("a boolean"); }
  bool binary(binary_t&) { return refuse_value("binary data"); }
  bool number_integer(number_integer_t value) {
    return in_list() ? fail(fmt::format("{} of '{}' has the negative number {}", field_, entry_, value))
                     : refuse_value("a number");
  }
  bool number_float(number_float_t, const string_t& text) {
    return in_list() ? fail(fmt::format("{} of '{}' has {}, which is not a 64-bit integer", field_, entry_, text))
                     : refuse_value("a number");
  }
  bool number_unsigned(number_unsigned_t value) {
    if (!in_list()) return refuse_value("a number");
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return fail(fmt::format("{} of '{}' has {}, beyond 2^63", field_, entry_, value));
    }
    list_.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool string(string_t& value) {
    if (state_ == State::kMetadata) {
      header_.metadata[field_] = std::move(value);
      return true;
    }
    if (state_ != State::kTensor || field_ != "dtype") return refuse_value("a string");
    tensor_.stored_dtype = std::move(value);
    return true;
  }
  bool start_object(std::size_t) {
    if (state_ == State::kStart) {
      state_ = State::kTop;
    } else if (state_ == State::kEntry) {
      state_ = entry_ == "__metadata__" ? State::kMetadata : State::kTensor;
      tensor_ = StoredTensor{};
      has_shape_ = has_offsets_ = false;
      fields_.clear();
    } else {
      return refuse_value("an object");
    }
    return true;
  }
  bool key(string_t& name) {
    if (state_ == State::kTop) {
      if (!names_.insert(name).second) return fail(fmt::format("the name '{}' appears twice", name));
      entry_ = std::move(name);
      state_ = State::kEntry;
      return true;
    }
    if (!fields_.insert(name).second) return fail(fmt::format("'{}' has the key '{}' twice", entry_, name));
    if (state_ == State::kTensor && name != "dtype" && name != "shape" && name != "data_offsets") {
      return fail(fmt::format("'{}' has the unknown key '{}'", entry_, name));
    }
    field_ = std::move(name);
    return true;
  }
  bool end_object() {
    const State ended = state_;
    state_ = ended == State::kTop ? State::kEnd : State::kTop;
    return ended != State::kTensor || finish_tensor();
  }
  bool start_array(std::size_t) {
    if (state_ != State::kTensor || field_ == "dtype") return refuse_value("a list");
    state_ = State::kList;
    list_.clear();
    return true;
  }
  bool end_array() {
    state_ = State::kTensor;
    if (field_ == "shape") {
      tensor_.shape = list_;
      has_shape_ = true;
      return true;
    }
    if (list_.size() != 2)
      return fail(fmt::format("data_offsets of '{}' has {} numbers instead of 2", entry_, list_.size()));
    tensor_.begin = list_[0];
    tensor_.end = list_[1];
    has_offsets_ = true;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) {
    return fail(fmt::format("the header is not valid JSON at its byte {}: {}", position, error.what()));
  }

  [[nodiscard]] const std::string& fault() const { return fault_; }
  [[nodiscard]] SafetensorsHeader take() { return std::move(header_); }

 private:
  enum class State : std::uint8_t { kStart, kTop, kEntry, kMetadata, kTensor, kList, kEnd };

  [[nodiscard]] bool in_list() const { return state_ == State::kList; }
  bool fail(std::string fault) {
    fault_ = std::move(fault);
    return false;
  }
  bool refuse_value(const char* what) {
    switch (state_) {
      case State::kStart:
      case State::kTop:
      case State::kEnd: return fail(fmt::format("the header is {} instead of an object", what));
      case State::kEntry: return fail(fmt::format("'{}' is {} instead of an object", entry_, what));
      case State::kMetadata:
        return fail(fmt::format("__metadata__ has {} for '{}' where only strings may stand", what, field_));
      case State::kTensor: return fail(fmt::format("{} of '{}' is {}", field_, entry_, what));
      case State::kList: break;
    }
    return fail(fmt::format("{} of '{}' contains {} instead of an integer", field_, entry_, what));
  }
  bool finish_tensor() {
    const char* missing = tensor_.stored_dtype.empty() ? "dtype"
                          : !has_shape_                ? "shape"
                          : !has_offsets_              ? "data_offsets"
                                                       : nullptr;
    if (missing != nullptr) return fail(fmt::format("'{}' has no {}", entry_, missing));
    const int bits = stored_bits(tensor_.stored_dtype);
    if (bits == 0) return fail(fmt::format("'{}' has the unknown dtype '{}'", entry_, tensor_.stored_dtype));
    std::int64_t elements = 1;
    std::int64_t total_bits = 0;
    bool overflow = false;
    for (const std::int64_t size : tensor_.shape)
      overflow = overflow || __builtin_mul_overflow(elements, size, &elements);
    overflow = overflow || __builtin_mul_overflow(elements, bits, &total_bits);
    if (overflow)
      return fail(fmt::format("shape {} × {} of '{}' overflows 64 bits", shape_text(tensor_.shape),
                              tensor_.stored_dtype, entry_));
    if (tensor_.begin > tensor_.end) {
      return fail(fmt::format("'{}' begins at {}, after its end {}", entry_, tensor_.begin, tensor_.end));
    }
    if (total_bits % 8 != 0 || total_bits / 8 != tensor_.end - tensor_.begin) {
      return fail(fmt::format("'{}' is {} {}, {} bytes, but its data_offsets [{}, {}] span {} bytes", entry_,
                              tensor_.stored_dtype, shape_text(tensor_.shape), ceil_div(total_bits, 8), tensor_.begin,
                              tensor_.end, tensor_.end - tensor_.begin));
    }
    tensor_.name = entry_;
    tensor_.elements = elements;
    tensor_.dtype = weight_dtype(tensor_.stored_dtype);
    header_.tensors.push_back(std::move(tensor_));
    return true;
  }

  State state_ = State::kStart;
  SafetensorsHeader header_;
  StoredTensor tensor_;
  std::string entry_, field_, fault_;
  std::vector<std::int64_t> list_;
  bool has_shape_ = false, has_offsets_ = false;
  std::unordered_set<std::string> names_, fields_;
};

// Empty when the tensors (sorted by their data) cover [0, data_bytes) exactly.
std::string coverage_fault(const std::vector<StoredTensor>& tensors, Bytes data_bytes) {
  Bytes covered = 0;
  const StoredTensor* before = nullptr;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin < covered) {
      return fmt::format("'{}' at [{}, {}] overlaps '{}' at [{}, {}]", tensor.name, tensor.begin, tensor.end,
                         before->name, before->begin, before->end);
    }
    if (tensor.begin > covered)
      return fmt::format("a hole: data bytes {} to {} before '{}' belong to no tensor", covered, tensor.begin,
                         tensor.name);
    covered = tensor.end;
    before = &tensor;
  }
  if (covered > data_bytes)
    return fmt::format("truncated: the tensors need {} bytes of data, the file has {}", covered, data_bytes);
  if (covered < data_bytes)
    return fmt::format("{} bytes after the last tensor belong to no tensor", data_bytes - covered);
  return {};
}

// JSON text of a string or a map of strings; an error when it is not UTF-8, for which the library throws.
template <class T>
Result<std::string> utf8_json(const T& value) {
  try {
    return nlohmann::json(value).dump();
  } catch (const nlohmann::json::exception& error) {
    return make_error(ErrorCode::kConfig,
                      fmt::format("a name for a safetensors file cannot be written: {}", error.what()));
  }
}

}  // namespace

const char* stored_dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFp32: return "F32";
    case DType::kBf16: return "BF16";
    case DType::kFp16: return "F16";
  }
  return "?";
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, Bytes data_bytes, const std::string& path) {
  const auto refuse = [&path](const std::string& fault) {
    return make_error(ErrorCode::kConfig, fmt::format("{} is not a valid safetensors file: {}", path, fault),
                      "Download or write the file again; `headrace checkpoint verify` checks it.");
  };
  if (json.empty()) return refuse("its header is empty");
  if (json.front() != '{') return refuse("its header does not begin with '{'");
  HeaderHandler handler;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &handler)) return refuse(handler.fault());
  SafetensorsHeader header = handler.take();
  // An empty tensor sorts before the one that begins at the same byte.
  std::sort(header.tensors.begin(), header.tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end != b.end ? a.end < b.end : a.name < b.name;
  });
  const std::string fault = coverage_fault(header.tensors, data_bytes);
  if (!fault.empty()) return refuse(fault);
  return header;
}

Result<std::string> format_safetensors_header(const SafetensorsHeader& header, Bytes data_alignment) {
  std::string json = "{";
  if (!header.metadata.empty()) {
    HEADRACE_TRY(const std::string metadata, utf8_json(header.metadata));
    json += "\"__metadata__\":" + metadata;
  }
  for (const StoredTensor& tensor : header.tensors) {
    if (json.size() > 1) json += ',';
    HEADRACE_TRY(const std::string name, utf8_json(tensor.name));
    json += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", name, tensor.stored_dtype,
                        fmt::join(tensor.shape, ","), tensor.begin, tensor.end);
  }
  json += '}';
  const Bytes unpadded = kSafetensorsPrefixBytes + static_cast<Bytes>(json.size());
  const auto length = static_cast<std::uint64_t>(round_up(unpadded, data_alignment) - kSafetensorsPrefixBytes);
  if (length > static_cast<std::uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return make_error(ErrorCode::kConfig,
                      fmt::format("a safetensors header for {} tensors is {} bytes long; readers refuse more than {}",
                                  header.tensors.size(), length, kMaxSafetensorsHeaderBytes),
                      "Write fewer tensors per file (several shards).");
  }
  std::string out;
  out.reserve(kSafetensorsPrefixBytes + length);
  for (int byte = 0; byte < 8; ++byte) out += static_cast<char>((length >> (8 * byte)) & 0xFFU);
  out += json;
  out.append(kSafetensorsPrefixBytes + length - out.size(), ' ');
  return out;
}

}  // namespace headrace::models
