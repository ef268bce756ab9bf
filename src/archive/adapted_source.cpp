// SPDX-License-Identifier: Apache-2.0
/// Weights with LoRA adapters added: W + scale B A, for the elements that are read.
#include <algorithm>
#include <filesystem>
#include <vector>

#include "archive/elements.hpp"
#include "archive/read_tensor.hpp"
#include "archive/tensor_source.hpp"
#include "format/shape.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/peft.hpp"
#include "fsdp/format/safetensors.hpp"

namespace fsdp::archive::detail {
namespace {

using format::detail::shape_text;

/// The two factors of a weight's change, whole.
struct Factors {
  std::vector<double> a;  ///< [rank, in]
  std::vector<double> b;  ///< [out, rank]
  std::int64_t in = 0, out = 0;
};

std::vector<double> read_all(const WeightSource& source, const Tensor& tensor) {
  FSDP_CHECK(is_floating(tensor.dtype) && tensor.shape.size() == 2, ErrorCode::kUnsupported,
             "the adapter's '", tensor.name, "' is ", tensor.dtype, " ", shape_text(tensor.shape),
             ", must be a matrix of floating-point numbers");
  std::vector<char> stored(static_cast<std::size_t>(tensor.bytes));
  source.read(tensor, 0, tensor.bytes, stored.data());
  std::vector<double> values(static_cast<std::size_t>(numel(tensor.shape)));
  to_double(tensor.dtype, stored.data(), std::ssize(values), values.data());
  return values;
}

class AdaptedReader : public TensorReader {
 public:
  AdaptedReader(WeightSource base, format::LoRAConfig lora, std::map<std::string, Factors> factors)
      : base_(std::move(base)), lora_(std::move(lora)), factors_(std::move(factors)) {}

  void read(const Tensor& tensor, std::int64_t tensor_offset, std::int64_t bytes,
            void* dst) const override {
    base_.read(tensor, tensor_offset, bytes, dst);
    const auto found = factors_.find(tensor.name);
    if (found == factors_.end()) {
      return;
    }
    const std::int64_t itemsize = format::element_bytes(tensor.dtype);
    FSDP_CHECK(tensor_offset % itemsize == 0 && bytes % itemsize == 0, ErrorCode::kInvalidArgument,
               "bytes ", tensor_offset, " to ", tensor_offset + bytes, " of '", tensor.name,
               "' are no whole elements");
    std::vector<double> values(static_cast<std::size_t>(bytes / itemsize));
    to_double(tensor.dtype, dst, std::ssize(values), values.data());
    add(found->second, tensor_offset / itemsize, values);
    from_double(tensor.dtype, values.data(), std::ssize(values), dst);
  }

  void check_sum(const Tensor& tensor) const override { base_.check_sum(tensor); }

  void will_read(const Tensor& tensor, std::int64_t tensor_offset,
                 std::int64_t bytes) const override {
    base_.will_read(tensor, tensor_offset, bytes);
  }

 private:
  void add(const Factors& factors, std::int64_t begin, std::vector<double>& values) const {
    const std::int64_t columns = lora_.is_transposed ? factors.out : factors.in;
    for (std::int64_t i = 0; i < std::ssize(values); ++i) {
      const std::int64_t row = (begin + i) / columns, column = (begin + i) % columns;
      const std::int64_t out = lora_.is_transposed ? column : row;
      const std::int64_t in = lora_.is_transposed ? row : column;
      double sum = 0;
      for (std::int64_t k = 0; k < lora_.rank; ++k) {
        sum += factors.b[static_cast<std::size_t>(out * lora_.rank + k)] *
               factors.a[static_cast<std::size_t>(k * factors.in + in)];
      }
      values[static_cast<std::size_t>(i)] += lora_.scale() * sum;
    }
  }

  WeightSource base_;
  format::LoRAConfig lora_;
  std::map<std::string, Factors> factors_;
};

/// The weight that a projection of the adapters stands beside; files of GPT-2 name it with or
/// without "transformer.".
const Tensor* adapted_weight(const WeightSource& base, const std::string& projection) {
  const std::string prefix = "transformer.";
  for (const std::string& name :
       {projection, projection.starts_with(prefix) ? projection.substr(prefix.size()) : projection,
        prefix + projection}) {
    if (const Tensor* found = base.find(name + ".weight")) {
      return found;
    }
  }
  return nullptr;
}

std::map<std::string, Factors> read_factors(const WeightSource& base, const std::string& path,
                                            const format::LoRAConfig& lora) {
  constexpr std::string_view kDown = ".lora_A.weight", kUp = ".lora_B.weight";
  const WeightSource adapters(path);
  std::map<std::string, Factors> all;
  for (const Tensor& down : adapters.tensors()) {
    const bool is_up = down.name.ends_with(kUp);
    FSDP_CHECK(
        down.name.starts_with(format::kAdapterPrefix) && (is_up || down.name.ends_with(kDown)),
        ErrorCode::kUnsupported, "'", path, "' holds '", down.name,
        "', which is no LoRA factor under PEFT's name");
    if (is_up) {
      continue;
    }
    const std::string whole = down.name.substr(0, down.name.size() - kDown.size());
    const std::string projection = whole.substr(std::string(format::kAdapterPrefix).size());
    const Tensor* up = adapters.find(whole + std::string(kUp));
    const Tensor* weight = adapted_weight(base, projection);
    FSDP_CHECK(up != nullptr, ErrorCode::kCorrupt, "'", path, "' has '", down.name,
               "' without its lora_B");
    FSDP_CHECK(weight != nullptr, ErrorCode::kMismatch, "'", path, "' adapts '", projection,
               "', which the base model does not have");
    Factors factors{.a = read_all(adapters, down),
                    .b = read_all(adapters, *up),
                    .in = down.shape[1],
                    .out = up->shape[0]};
    const std::vector<std::int64_t> shape = lora.is_transposed
                                                ? std::vector{factors.in, factors.out}
                                                : std::vector{factors.out, factors.in};
    FSDP_CHECK(down.shape[0] == lora.rank && up->shape[1] == lora.rank && weight->shape == shape &&
                   is_floating(weight->dtype),
               ErrorCode::kMismatch, "'", path, "': lora_A ", shape_text(down.shape),
               " and lora_B ", shape_text(up->shape), " of rank ", lora.rank, " do not fit '",
               weight->name, "', ", weight->dtype, " ", shape_text(weight->shape));
    all.emplace(weight->name, std::move(factors));
  }
  FSDP_CHECK(std::ssize(all) * 2 == std::ssize(adapters.tensors()), ErrorCode::kCorrupt, "'", path,
             "' has a lora_B without its lora_A");
  return all;
}

}  // namespace

TensorSource open_adapted(const std::string& base_path, const std::string& adapter, SumCheck sums) {
  const std::filesystem::path directory(adapter);
  WeightSource base(base_path, sums);
  const std::string config = (directory / format::kAdapterConfig).string();
  const auto documents = read_documents(adapter);
  const auto found = documents.find(format::kAdapterConfig);
  FSDP_CHECK(found != documents.end(), ErrorCode::kNotFound, "'", adapter, "' has no ",
             format::kAdapterConfig, ": no directory of adapters");
  const format::LoRAConfig lora = format::parse_adapter_config(config, found->second);
  auto factors = read_factors(base, (directory / format::kAdapterFile).string(), lora);
  TensorSource source{
      .tensors = base.tensors(), .aliases = base.aliases(), .documents = base.documents()};
  source.reader = std::make_unique<AdaptedReader>(std::move(base), lora, std::move(factors));
  return source;
}

}  // namespace fsdp::archive::detail
