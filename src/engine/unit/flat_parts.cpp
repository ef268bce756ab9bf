// SPDX-License-Identifier: Apache-2.0
#include "engine/unit/flat_parts.hpp"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "engine/touch/flat_storage.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

FlatParts::FlatParts(const Unit& unit, const at::Tensor& flat, StorageRole role)
    : role_(role),
      memory_(flat),
      flat_(role == StorageRole::kShard ? tagged_part(flat, 0, flat.numel()) : flat) {
  for (const Parameter& parameter : unit.parameters) {
    parts_.push_back(tagged_part(flat, parameter.piece.shard_offset, parameter.piece.numel));
  }
}

void FlatParts::connect(const std::weak_ptr<TouchTarget>& target, int unit) {
  registration_.emplace(memory_.storage().unsafeGetStorageImpl(), target, unit, /*parameter=*/0,
                        role_);
  own_views_ = memory_.storage().use_count();
}

bool FlatParts::has_grad() const {
  return std::ranges::any_of(parts_, [](const at::Tensor& part) { return part.grad().defined(); });
}

// --- handles that stray ----------------------------------------------------------------------

bool FlatParts::is_home(const Unit& unit, std::size_t part) const {
  const at::Tensor& handle = parts_[part];
  const layout::ParameterPart& piece = unit.parameters[part].piece;
  return handle.has_storage() &&
         handle.storage().unsafeGetStorageImpl() == memory_.storage().unsafeGetStorageImpl() &&
         handle.storage_offset() == memory_.storage_offset() + piece.shard_offset &&
         handle.numel() == piece.numel;
}

bool FlatParts::has_strayed(const Unit& unit) const {
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    if (!is_home(unit, part)) {
      return true;
    }
  }
  return false;
}

void FlatParts::bring_home(const Unit& unit) const {
  std::vector<std::size_t> strayed;
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    if (!is_home(unit, part)) {
      strayed.push_back(part);
    }
  }
  const c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  const bool is_gradient = role_ == StorageRole::kGradShard;
  for (const std::size_t i : strayed) {
    const layout::ParameterPart& piece = unit.parameters[i].piece;
    const at::Tensor& handle = parts_[i];
    FSDP_CHECK(handle.sizes() == c10::IntArrayRef{piece.numel} &&
                   handle.scalar_type() == memory_.scalar_type() &&
                   handle.device() == memory_.device(),
               ErrorCode::kInvalidArgument, "[touch] ", is_gradient ? "the gradient of " : "",
               "the shard of \"", unit.parameters[i].name, "\" is now ", handle.toString(), " ",
               handle.sizes(), " on ", handle.device(), ", by set_data() or set_(), and was ",
               memory_.toString(), " [", piece.numel, "] on ", memory_.device(),
               ": its unit is laid out for that. Convert the module before fully_shard()");
    // Views of gradients may change at any backward; nobody keeps them for later.
    FSDP_CHECK(is_gradient || memory_.storage().use_count() + strayed.size() <= own_views_,
               ErrorCode::kInvalidArgument, "[touch] the shard of \"", unit.parameters[i].name,
               "\" has other memory now, by set_data() or set_(), and its values go back into its "
               "unit's, but a tensor of yours still shows that, such as data() kept to be swapped "
               "back: it would change with them. Keep a clone() instead, or write values into the "
               "shard: shard.data().copy_(values)");
  }
  for (const std::size_t i : strayed) {
    const layout::ParameterPart& piece = unit.parameters[i].piece;
    memory_.narrow(0, piece.shard_offset, piece.numel).copy_(parts_[i].detach());
    parts_[i].unsafeGetTensorImpl()->shallow_copy_from(
        tagged_part(memory_, piece.shard_offset, piece.numel).getIntrusivePtr());
  }
}

}  // namespace fsdp::engine
