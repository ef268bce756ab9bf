// SPDX-License-Identifier: Apache-2.0
/// Makes small GGUF files.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::test {

/// Collects metadata and tensors; bytes() is the file.
class GgufWriter {
 public:
  explicit GgufWriter(std::uint32_t version = 3) : version_(version) {}

  void text(const std::string& key, const std::string& value) {
    begin(key, 8);
    put_text(metadata_, value);
  }
  void integer(const std::string& key, std::uint32_t value) {
    begin(key, 4);
    put(metadata_, value);
  }
  void real(const std::string& key, float value) {
    begin(key, 6);
    put(metadata_, value);
  }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    begin(key, 9);
    put(metadata_, std::uint32_t{8});
    put(metadata_, static_cast<std::uint64_t>(values.size()));
    for (const std::string& value : values) {
      put_text(metadata_, value);
    }
  }
  void integers(const std::string& key, const std::vector<std::int32_t>& values) {
    begin(key, 9);
    put(metadata_, std::uint32_t{5});
    put(metadata_, static_cast<std::uint64_t>(values.size()));
    for (const std::int32_t value : values) {
      put(metadata_, value);
    }
  }
  /// `shape` is row-major; `data` holds the blocks.
  void tensor(const std::string& name, const std::vector<std::uint64_t>& shape, std::uint32_t type,
              const std::string& data) {
    ++tensors_;
    put_text(entries_, name);
    put(entries_, static_cast<std::uint32_t>(shape.size()));
    for (auto size = shape.rbegin(); size != shape.rend(); ++size) {
      put(entries_, *size);
    }
    put(entries_, type);
    put(entries_, static_cast<std::uint64_t>(data_.size()));
    data_ += data;
    data_.resize((data_.size() + 31) / 32 * 32);
  }
  void floats(const std::string& name, const std::vector<std::uint64_t>& shape,
              const std::vector<float>& values) {
    std::string data(values.size() * sizeof(float), '\0');
    std::memcpy(data.data(), values.data(), data.size());
    tensor(name, shape, 0, data);
  }

  std::string bytes() const {
    std::string file = "GGUF";
    put(file, version_);
    put(file, tensors_);
    put(file, values_);
    file += metadata_ + entries_;
    file.resize((file.size() + 31) / 32 * 32);
    return file + data_;
  }

 private:
  template <class T>
  static void put(std::string& dst, T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    dst.append(bytes, sizeof value);
  }
  static void put_text(std::string& dst, const std::string& text) {
    put(dst, static_cast<std::uint64_t>(text.size()));
    dst += text;
  }
  void begin(const std::string& key, std::uint32_t type) {
    ++values_;
    put_text(metadata_, key);
    put(metadata_, type);
  }

  std::uint32_t version_;
  std::uint64_t tensors_ = 0, values_ = 0;
  std::string metadata_, entries_, data_;
};

}  // namespace fsdp::test
