// SPDX-License-Identifier: Apache-2.0
#include "engine/touch/touch.hpp"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <ranges>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/host_language.hpp"
#include "engine/touch/deferred.hpp"
#include "engine/touch/operand_cast.hpp"
#include "engine/touch/shard_operators.hpp"
#include "engine/touch/stand_in.hpp"

namespace fsdp::engine {

namespace {

struct Entry {
  std::weak_ptr<TouchTarget> target;
  int unit;
  int parameter;
  StorageRole role;
};

class Registry {
 public:
  static Registry& instance() {
    static Registry registry;
    return registry;
  }

  void add(const c10::StorageImpl* storage, Entry entry) {
    std::unique_lock lock(mutex_);
    entries_.insert_or_assign(storage, std::move(entry));
  }
  void remove(const c10::StorageImpl* storage) {
    std::unique_lock lock(mutex_);
    entries_.erase(storage);
  }
  /// Returns whether the storage is known, and if so copies its entry to `dst`.
  bool find(const c10::StorageImpl* storage, Entry& dst) const {
    std::shared_lock lock(mutex_);
    auto found = entries_.find(storage);
    if (found == entries_.end()) {
      return false;
    }
    dst = found->second;
    return true;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
};

/// Operators that read and write no element: they need no weights gathered. Each is a true view or
/// a question about metadata; operators that may copy (reshape, contiguous, to) are not among them.
constexpr std::array kMetadataOperators = {
    std::string_view("aten::detach"),
    std::string_view("aten::alias"),
    std::string_view("aten::t"),
    std::string_view("aten::numpy_T"),
    std::string_view("aten::transpose"),
    std::string_view("aten::permute"),
    std::string_view("aten::view"),
    std::string_view("aten::expand"),
    std::string_view("aten::slice"),
    std::string_view("aten::select"),
    std::string_view("aten::narrow"),
    std::string_view("aten::as_strided"),
    std::string_view("aten::unsqueeze"),
    std::string_view("aten::squeeze"),
    std::string_view("aten::split"),
    std::string_view("aten::chunk"),
    std::string_view("aten::unbind"),
    std::string_view("aten::data"),
    std::string_view("aten::size"),
    std::string_view("aten::stride"),
    std::string_view("aten::is_leaf"),
    std::string_view("aten::output_nr"),
    std::string_view("aten::_version"),
    std::string_view("aten::requires_grad_"),
    std::string_view("aten::retain_grad"),
    std::string_view("aten::retains_grad"),
    std::string_view("aten::is_complex"),
    std::string_view("aten::is_floating_point"),
    std::string_view("aten::sym_size"),
    std::string_view("aten::sym_stride"),
    std::string_view("aten::sym_numel"),
    std::string_view("aten::sym_storage_offset"),
    std::string_view("aten::view_as_real"),
    std::string_view("aten::view_as_complex"),
    std::string_view("aten::detach_"),
    std::string_view("aten::is_same_size"),
    std::string_view("aten::_has_compatible_shallow_copy_type"),
    // Of what is neither conjugated nor negated by a bit. Who wants a raw pointer calls them first
    // (numpy() in Python), and it must not be one to a gathered copy.
    std::string_view("aten::resolve_conj"),
    std::string_view("aten::resolve_neg"),
};

/// What the fallback needs to know of an operator, looked up once per thread.
struct OperatorInfo {
  bool is_metadata = false;
  bool adds = false;
  bool resolves = false;           ///< resolve_conj and resolve_neg
  bool converts = false;           ///< cpu() and the like
  bool precedes_set_data = false;  ///< set_data() itself does not pass the dispatcher
  std::uint64_t writes = 0;        ///< bit i: argument i is written
  CastTraits casts = {};
  bool mixes_elements = false;
  bool marks_result = false;  ///< is_first_half_of_a_norm()
};

/// The result of an operator on a shard that still stands for a part of the whole. Views and data()
/// of it are plain tensors with the key, which nothing knows.
class DerivedFromShard : public c10::TensorImpl {
 public:
  DerivedFromShard(const at::Tensor& result, std::weak_ptr<TouchTarget> target_in, int unit_in,
                   std::int64_t begin_in, bool is_gradient_in)
      : c10::TensorImpl(c10::TensorImpl::VIEW, c10::Storage(result.storage()),
                        result.key_set() | c10::DispatchKeySet(kTouchKey), result.dtype()),
        target(std::move(target_in)),
        unit(unit_in),
        begin(begin_in),
        is_gradient(is_gradient_in) {
    set_storage_offset(result.storage_offset());
    set_sizes_and_strides(result.sizes(), result.strides());
  }

  const std::weak_ptr<TouchTarget> target;
  const int unit;
  const std::int64_t begin;
  const bool is_gradient;
};

const OperatorInfo& info_of(const c10::FunctionSchema& schema) {
  // Schemas live as long as their operator's registration; the address is the identity.
  thread_local std::unordered_map<const c10::FunctionSchema*, OperatorInfo> cache;
  auto [entry, is_new] = cache.try_emplace(&schema);
  if (is_new) {
    OperatorInfo& info = entry->second;
    info.mixes_elements = mixes_elements(schema);
    info.marks_result = is_first_half_of_a_norm(schema);
    info.is_metadata = std::find(kMetadataOperators.begin(), kMetadataOperators.end(),
                                 schema.name()) != kMetadataOperators.end();
    info.adds = schema.name() == "aten::add" && schema.overload_name() == "Tensor";
    // As cpu() does. to() of a device and a type is how LibTorch begins to print a tensor.
    info.converts = schema.name() == "aten::to" && schema.overload_name() == "dtype_layout";
    info.resolves = schema.name().starts_with("aten::resolve_");
    info.precedes_set_data = schema.name() == "aten::_has_compatible_shallow_copy_type";
    info.casts = cast_traits(schema);
    const auto& arguments = schema.arguments();
    for (std::size_t i = 0; i < std::min<std::size_t>(arguments.size(), 64); ++i) {
      const c10::AliasInfo* alias = arguments[i].alias_info();
      if (alias != nullptr && alias->isWrite()) {
        info.writes |= std::uint64_t{1} << i;
      }
    }
  }
  return entry->second;
}

/// The weights of one engine among an operator's inputs.
struct TargetHits {
  std::shared_ptr<TouchTarget> target;
  c10::SmallVector<Hit, 8> hits;
  c10::SmallVector<int, 4> units;
};

struct AllHits {
  c10::SmallVector<TargetHits, 1> targets;
  std::optional<at::ScalarType> dtype;  ///< of the floating-point weights
  bool is_uniform = true;               ///< they have all the same

  void note_type(const at::Tensor& weight) {
    if (weight.is_floating_point()) {
      is_uniform = is_uniform && dtype.value_or(weight.scalar_type()) == weight.scalar_type();
      dtype = weight.scalar_type();
    }
  }
};

/// An operator as its inputs are looked at.
struct Call {
  const char* op;
  const OperatorInfo& info;
  std::uint64_t signature;
  at::Tensor shard = {};  ///< one of its inputs, if any is a part of a parameter or gradient
  bool is_done = false;   ///< there is nothing left to run
};

void collect(const at::Tensor& tensor, bool is_write, Call& call, AllHits& all) {
  if (!tensor.defined() || !tensor.key_set().has(kTouchKey) || !tensor.has_storage()) {
    return;
  }
  const char* op = call.op;
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  Entry entry;
  if (!Registry::instance().find(storage, entry)) {
    const auto* derived = dynamic_cast<const DerivedFromShard*>(tensor.unsafeGetTensorImpl());
    if (derived != nullptr && call.info.mixes_elements) {
      if (const auto target = derived->target.lock()) {
        target->refuse_mixing(derived->unit, derived->begin, derived->is_gradient, op);
      }
    }
    return;  // its engine is gone: the storage itself says so when it is read
  }
  std::shared_ptr<TouchTarget> target = entry.target.lock();
  if (target == nullptr) {
    return;
  }
  const Hit hit{entry.unit, entry.parameter, is_write};
  if (entry.role == StorageRole::kGradGuard) {
    // All that module->zero_grad(/*set_to_none=*/false) does.
    call.is_done = std::string_view(op) == "aten::zero_";
    call.is_done ? target->zero_grad_of(hit) : target->refuse_grad_use(hit, op);
    return;
  }
  if (entry.role == StorageRole::kShard || entry.role == StorageRole::kGradShard) {
    const bool is_gradient = entry.role == StorageRole::kGradShard;
    if (call.info.mixes_elements) {
      target->refuse_mixing(entry.unit, tensor.storage_offset(), is_gradient, op);
    }
    if (is_write && !is_gradient) {
      target->shard_written(entry.unit);
    }
    call.shard = tensor;
    return;
  }
  call.signature = call.signature * 1099511628211u ^ reinterpret_cast<std::uintptr_t>(storage);
  all.note_type(tensor);
  auto& targets = all.targets;
  auto found = std::find_if(targets.begin(), targets.end(),
                            [&](const TargetHits& other) { return other.target == target; });
  if (found == targets.end()) {
    targets.push_back({std::move(target), {}, {}});
    found = targets.end() - 1;
  }
  found->hits.push_back(hit);
  auto place = std::lower_bound(found->units.begin(), found->units.end(), hit.unit);
  if (place == found->units.end() || *place != hit.unit) {
    found->units.insert(place, hit.unit);
  }
}

void collect(const c10::IValue& value, bool is_write, Call& call, AllHits& all) {
  if (value.isTensor()) {
    collect(value.toTensor(), is_write, call, all);
  } else if (value.isList()) {
    // Tensor[], Tensor?[] and lists of them; other lists hold no tensors.
    const c10::ArrayRef<c10::IValue> elements = value.toListRef();
    for (const c10::IValue& element : elements) {
      if (!element.isTensor() && !element.isNone() && !element.isList()) {
        break;
      }
      collect(element, is_write, call, all);
    }
  }
}

/// Pins for the length of an operator, over exceptions too.
class Pins {
 public:
  ~Pins() {
    for (TargetHits* held : std::views::reverse(held_)) {
      held->target->release(held->units);
    }
  }
  void add(TargetHits& hits, const char* op, std::uint64_t signature) {
    hits.target->touch(hits.units, hits.hits, op, signature);
    held_.push_back(&hits);
  }

 private:
  c10::SmallVector<TargetHits*, 1> held_;
};

/// How the operator is to be cast: as the first unit with a say in it wants; not at all when it
/// takes weights of several types, which is for the operator to sort out.
OperandCast rule_of(const AllHits& all) {
  if (!all.dtype.has_value() || !all.is_uniform) {
    return {};
  }
  for (const TargetHits& hits : all.targets) {
    for (int unit : hits.units) {
      const OperandCast rule = hits.target->cast_of(unit);
      if (rule.operands || rule.results.has_value()) {
        return rule;
      }
    }
  }
  return {};
}

/// Marks the one result of an operator on `shard`.
void mark_result(const at::Tensor& shard, torch::jit::Stack& stack) {
  const at::Tensor& result = stack.back().toTensor();
  Entry entry;
  if (result.key_set().has(kTouchKey) || result.requires_grad() ||
      !Registry::instance().find(shard.storage().unsafeGetStorageImpl(), entry)) {
    return;
  }
  stack.back() = at::Tensor(c10::make_intrusive<DerivedFromShard>(
      result, entry.target, entry.unit, shard.storage_offset(),
      entry.role == StorageRole::kGradShard));
}

/// Autograd records views before anything touches their memory. And a shard whose handle gets other
/// memory counts as written, see NOTE [Handles that stray].
void announce_view(const at::Tensor& self, const OperatorInfo& info) {
  Entry entry;
  if ((!info.precedes_set_data && !c10::GradMode::is_enabled()) || !self.has_storage() ||
      !Registry::instance().find(self.storage().unsafeGetStorageImpl(), entry)) {
    return;
  }
  const auto target = entry.target.lock();
  if (target == nullptr) {
    return;
  }
  if (entry.role == StorageRole::kWeight) {
    target->weight_viewed(entry.unit, entry.parameter);
    if (info.precedes_set_data) {
      target->weight_replaced(entry.unit, entry.parameter);
    }
  } else if (entry.role == StorageRole::kShard && info.precedes_set_data) {
    target->shard_written(entry.unit);
  }
}

/// Whether aten::to gives back the tensor that it takes, as numpy() in Python asks of it.
bool keeps_all(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  const std::size_t count = schema.arguments().size();
  const c10::IValue* values = stack.data() + (stack.size() - count);
  const at::Tensor& self = values[0].toTensor();
  for (std::size_t i = 1; i < count; ++i) {
    const std::string& name = schema.arguments()[i].name();
    const c10::IValue& value = values[i];
    if (value.isNone() || name == "non_blocking" || name == "pin_memory") {
      continue;
    }
    const bool is_kept =
        (name == "dtype" && value.toScalarType() == self.scalar_type()) ||
        (name == "device" && value.toDevice() == self.device()) ||
        (name == "layout" && value.toLayout() == self.layout()) ||
        (name == "copy" && !value.toBool()) ||
        (name == "memory_format" && value.toMemoryFormat() == c10::MemoryFormat::Preserve);
    if (!is_kept) {
      return false;
    }
  }
  return true;
}

void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const OperatorInfo& info = info_of(schema);
  const auto self = [&]() -> const at::Tensor& {
    return (*stack)[stack->size() - schema.arguments().size()].toTensor();
  };
  const bool is_metadata =
      (info.is_metadata && !(info.resolves && (self().is_conj() || self().is_neg()))) ||
      (info.converts && keeps_all(schema, *stack));
  if (!is_metadata && defer(op, keys, stack)) {
    return;
  }
  // Nested operators of this one pass straight through: what they take is pinned already.
  c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  if (is_metadata) {
    announce_view(self(), info);
    op.callBoxed(stack);
    return;
  }
  if (info.adds && add_stand_ins(*stack)) {
    return;
  }
  // TorchScript passes its whole stack: the operator's own inputs are the last ones.
  const std::size_t count = schema.arguments().size();
  AllHits all;
  Call call{schema.name().c_str(), info, reinterpret_cast<std::uintptr_t>(&schema)};
  for (std::size_t i = 0; i < count; ++i) {
    collect((*stack)[stack->size() - count + i], (info.writes >> i) & 1, call, all);
  }
  if (call.is_done) {
    return;  // its result is its input
  }
  Pins pins;
  for (TargetHits& hits : all.targets) {
    pins.add(hits, call.op, call.signature);
  }
  const OperandCast rule = rule_of(all);
  if (!all.dtype.has_value() || (!rule.operands && !rule.results.has_value())) {
    op.callBoxed(stack);
    if (info.marks_result && call.shard.defined()) {
      mark_result(call.shard, *stack);
    }
    return;
  }
  OperatorCast cast(schema, info.casts, rule, *all.dtype);
  cast.operands(*stack);
  op.callBoxed(stack);
  cast.results(*stack);
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  try {
    run(op, keys, stack);
  } catch (const Error& error) {
    base::raise_for_host(error);
    throw;
  }
}

}  // namespace

void ensure_fallback() {
  static torch::Library* library = [] {
    // Never destroyed: weights may outlive every static object.
    auto* made = new torch::Library(torch::Library::IMPL, "_", c10::make_optional(kTouchKey),
                                    __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
    return made;
  }();
  (void)library;
}

void touch_briefly(TouchTarget& target, std::span<const int> units, const char* op) {
  c10::SmallVector<Hit, 8> hits;
  auto signature = std::uint64_t{reinterpret_cast<std::uintptr_t>(&target)};
  for (int unit : units) {
    hits.push_back({.unit = unit, .parameter = 0, .is_write = false});
    signature = signature * 1099511628211u ^ static_cast<std::uint64_t>(unit);
  }
  target.touch(units, hits, op, signature);
  target.release(units);
}

Registration::Registration(const c10::StorageImpl* storage, std::weak_ptr<TouchTarget> target,
                           int unit, int parameter, StorageRole role)
    : storage_(storage) {
  Registry::instance().add(storage, {std::move(target), unit, parameter, role});
}

Registration::Registration(Registration&& other) noexcept
    : storage_(std::exchange(other.storage_, nullptr)) {}

Registration& Registration::operator=(Registration&& other) noexcept {
  std::swap(storage_, other.storage_);
  return *this;
}

Registration::~Registration() {
  if (storage_ != nullptr) {
    Registry::instance().remove(storage_);
  }
}

bool is_registered(const c10::StorageImpl* storage, const TouchTarget* target) {
  Entry entry;
  return Registry::instance().find(storage, entry) && entry.role == StorageRole::kWeight &&
         entry.target.lock().get() == target;
}

}  // namespace fsdp::engine
