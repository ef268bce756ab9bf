// SPDX-License-Identifier: Apache-2.0
/// Bytes from outside as an index, as the header of a safetensors or GGUF file, or as a description
/// of adapters: the reader accepts them or throws
/// fsdp::Error, and nothing else. What it accepts keeps its promises. The first byte of the input
/// chooses the reader, so that one corpus serves all.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>

#include "archive/index_text.hpp"
#include "format/gguf.hpp"
#include "fsdp/archive/index.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/peft.hpp"
#include "fsdp/format/safetensors.hpp"
#include "reader.hpp"

namespace {

using namespace fsdp;

/// An accepted index names tensors inside of their files and reads back as itself.
void check_index(const std::string& text) {
  const archive::Index index = archive::parse_index("input", text);
  for (const archive::Tensor& tensor : index.tensors) {
    FSDP_ASSERT(tensor.bytes >= 0 && tensor.offset >= 0, tensor.name);
  }
  const std::string written = archive::to_json(index);
  FSDP_ASSERT(archive::to_json(archive::parse_index("again", written)) == written, "not equal");
}

void check_header(std::string_view json, std::int64_t file_bytes) {
  const format::SafetensorsHeader header =
      format::parse_safetensors_header("input", json, file_bytes);
  std::int64_t end = header.head_bytes;
  for (const format::StoredTensor& tensor : header.tensors) {
    FSDP_ASSERT(tensor.offset == end && tensor.bytes >= 0, tensor.entry.name);
    end += tensor.bytes;
  }
  FSDP_ASSERT(end == file_bytes, end);
}

/// An accepted header names tensors inside of the file, one behind the other.
void check_gguf(const std::string& file) {
  std::istringstream stream(file);
  std::int64_t end = 0;
  for (const format::GgufTensor& tensor :
       format::parse_gguf_header("input", stream, std::ssize(file)).tensors) {
    FSDP_ASSERT(tensor.offset >= end && tensor.bytes >= 0, tensor.name);
    end = tensor.offset + tensor.bytes;
    FSDP_ASSERT(end <= std::ssize(file), tensor.name);
  }
}

/// Accepted adapters read back as themselves.
void check_adapters(const std::string& text) {
  const std::string written = format::to_json(format::parse_adapter_config("input", text));
  FSDP_ASSERT(format::to_json(format::parse_adapter_config("again", written)) == written, written);
}

void read_as(char reader, const std::string& text) {
  switch (reader) {
    case 'i':  // an index as it is
      return check_index(text);
    case 's':  // one whose sum fits, so that the rest of it is looked at
      return check_index(archive::detail::with_sum(text));
    case 'g': return check_gguf(text);
    case 'p': return check_adapters(text);
    default:  // a header, in a file of the size that a number in front says
      const std::size_t space = text.find(' ');
      if (space > 0 && space < 10 && text.find_first_not_of("0123456789") == space) {
        check_header(std::string_view(text).substr(space + 1), std::stoll(text.substr(0, space)));
      }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::run_reader(data, size, read_as);
}
