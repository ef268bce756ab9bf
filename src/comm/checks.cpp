// SPDX-License-Identifier: Apache-2.0
#include "comm/checks.hpp"

#include <c10/core/ScalarType.h>

#include "comm/reduce_slices.hpp"
#include "comm/wire.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

Description describe_call(Operation operation, const Label& label) {
  Description description;
  description.operation = static_cast<std::int32_t>(operation);
  description.unit = label.unit;
  description.name = label.name;
  return description;
}

void check_tensor(const Transport& group, Operation operation, const Label& label, const char* role,
                  const at::Tensor& tensor) {
  FSDP_CHECK(tensor.defined(), ErrorCode::kInvalidArgument, to_string(operation), " for \"",
             label.name, "\": ", role, " is an undefined tensor");
  if (!tensor.is_cpu()) {
    const auto refusal = group.refuses(tensor.device());
    FSDP_CHECK(!refusal, ErrorCode::kUnsupported, to_string(operation), " for \"", label.name,
               "\": ", role, " is on ", tensor.device().str(), ", and ", *refusal);
  }
  FSDP_CHECK(tensor.is_contiguous(), ErrorCode::kInvalidArgument, to_string(operation), " for \"",
             label.name, "\": ", role, " of sizes ", tensor.sizes(), " is not contiguous");
}

void check_same_dtype(Operation operation, const Label& label, const at::Tensor& dst,
                      const at::Tensor& src) {
  FSDP_CHECK(dst.scalar_type() == src.scalar_type(), ErrorCode::kInvalidArgument,
             to_string(operation), " for \"", label.name, "\": dst is ",
             c10::toString(dst.scalar_type()), " but src is ", c10::toString(src.scalar_type()));
}

void check_slices(Operation operation, const Label& label, const char* whole_role,
                  const at::Tensor& whole, const at::Tensor& slice, int size) {
  FSDP_CHECK(whole.numel() == slice.numel() * size, ErrorCode::kInvalidArgument,
             to_string(operation), " for \"", label.name, "\": ", whole_role, " has ",
             whole.numel(), " elements, must have ", size, " slices of ", slice.numel(), " = ",
             slice.numel() * size);
}

void describe_payload(Description& description, const at::Tensor& slice) {
  description.bytes = static_cast<std::int64_t>(slice.nbytes());
  description.dtype = c10::toString(slice.scalar_type());
}

}  // namespace

std::optional<std::string> refuse_all_but_cpu(const std::string& transport, c10::Device device) {
  if (device.is_cpu()) {
    return std::nullopt;
  }
  return transport + " takes tensors of the CPU: " +
         (device.is_meta() ? "give the tensor memory first"
                           : "copy the tensor there, or use make_c10d_link() with a "
                             "backend that takes both devices");
}

Description check_all_gather(const Transport& group, const at::Tensor& dst, const at::Tensor& src,
                             const Label& label) {
  constexpr Operation kOperation = Operation::kAllGather;
  check_tensor(group, kOperation, label, "dst", dst);
  check_tensor(group, kOperation, label, "src", src);
  check_same_dtype(kOperation, label, dst, src);
  check_slices(kOperation, label, "dst", dst, src, group.size());
  Description description = describe_call(kOperation, label);
  describe_payload(description, src);
  return description;
}

Description check_reduce_scatter(const Transport& group, const at::Tensor& dst,
                                 const at::Tensor& src, const Finish& finish, const Label& label) {
  constexpr Operation kOperation = Operation::kReduceScatter;
  check_tensor(group, kOperation, label, "dst", dst);
  check_tensor(group, kOperation, label, "src", src);
  if (!is_widening(dst.scalar_type(), src.scalar_type())) {
    check_same_dtype(kOperation, label, dst, src);
  }
  check_slices(kOperation, label, "src", src, dst, group.size());
  check_reduction(src.scalar_type(), finish);
  Description description = describe_call(kOperation, label);
  describe_payload(description, src);
  description.bytes /= group.size();
  return description;
}

Description check_broadcast(const Transport& group, const at::Tensor& buffer, int root,
                            const Label& label) {
  constexpr Operation kOperation = Operation::kBroadcast;
  check_tensor(group, kOperation, label, "buffer", buffer);
  FSDP_CHECK(root >= 0 && root < group.size(), ErrorCode::kInvalidArgument, to_string(kOperation),
             " for \"", label.name, "\": root is ", root, ", must be in [0, ", group.size(), ")");
  Description description = describe_call(kOperation, label);
  describe_payload(description, buffer);
  description.root = root;
  return description;
}

Description describe(const Announcement& announcement) {
  Description description = describe_call(announcement.operation, announcement.label);
  description.bytes = announcement.bytes;
  description.dtype = announcement.dtype;
  return description;
}

Description describe_agree(const Label& label) { return describe_call(Operation::kAgree, label); }

}  // namespace fsdp::comm::detail
